//! Where one output stands in its grammar.

use llguidance::{CancellationHandle, TokenParser};

use crate::error::TextError;
use crate::grammar::limits::reason;

/// Follows one output. A clone goes its own way, and shares nothing that one could make the other wait for.
pub struct Matcher {
    inner: llguidance::Matcher,
    stopper: CancellationHandle,
    words: usize,
    vocabulary: u32,
}

impl std::fmt::Debug for Matcher {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Matcher")
            .field("error", &self.inner.get_error())
            .finish_non_exhaustive()
    }
}

impl Clone for Matcher {
    fn clone(&self) -> Self {
        let inner = self.inner.deep_clone();
        // A clone has a signal of its own.
        let stopper = inner.cancellation_handle().unwrap_or_default();
        Self {
            inner,
            stopper,
            ..*self
        }
    }
}

/// Stops whatever a matcher is doing, for good, from any thread.
#[derive(Clone, Debug)]
pub struct Stopper(CancellationHandle);

impl Stopper {
    /// The matcher gives up soon, with an error.
    pub fn stop(&self) {
        self.0.cancel();
    }
}

impl Matcher {
    pub(super) fn new(parser: TokenParser, words: usize, vocabulary: u32) -> Result<Self, String> {
        let inner = llguidance::Matcher::new(Ok(parser)).into_cancellable();
        if let Some(error) = inner.get_error() {
            return Err(error);
        }
        let stopper = inner.cancellation_handle().unwrap_or_default();
        Ok(Self {
            inner,
            stopper,
            words,
            vocabulary,
        })
    }

    /// What stops this matcher.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        Stopper(self.stopper.clone())
    }

    /// Takes the next token of the output.
    ///
    /// # Errors
    /// [`TextError::GrammarFailed`] for a token that was in no mask, and once a mask has failed.
    pub fn push(&mut self, token: u32) -> Result<(), TextError> {
        let ends = self.inner.is_stopped() && !self.inner.is_error() && self.is_end(token);
        if ends {
            return Ok(());
        }
        self.inner
            .consume_token(token)
            .map_err(|error| failed(&error.to_string()))
    }

    /// Whether a token ends outputs.
    fn is_end(&self, token: u32) -> bool {
        let env = self.inner.tok_env();
        env.is_ok_and(|env| env.tok_trie().eos_tokens().contains(&token))
    }

    /// The tokens that may come next, as words of 32 bits, into `mask`. Where the grammar has nothing more to say, those
    /// that end the output. Tokens of `avoided` are left out as long as any other is left.
    ///
    /// # Errors
    /// [`TextError::GrammarFailed`] if that takes more than the limits, or was stopped.
    pub fn mask(&mut self, avoided: &[u32], mask: &mut Vec<u32>) -> Result<(), TextError> {
        let allowed = self
            .inner
            .compute_mask_or_eos()
            .map_err(|error| failed(&error.to_string()))?;
        mask.clear();
        mask.extend_from_slice(&allowed.as_slice()[..self.words]);
        // Nothing past the vocabulary.
        if let Some(last) = mask.last_mut()
            && !self.vocabulary.is_multiple_of(32)
        {
            *last &= (1 << (self.vocabulary % 32)) - 1;
        }
        avoid(avoided, mask);
        Ok(())
    }

    /// Whether the output may end here.
    ///
    /// # Errors
    /// As [`Self::mask`].
    pub fn may_end(&mut self) -> Result<bool, TextError> {
        self.inner
            .is_accepting()
            .map_err(|error| failed(&error.to_string()))
    }
}

/// Takes tokens out of a mask as long as any other is left.
pub fn avoid(ids: &[u32], mask: &mut [u32]) {
    let without = |place: usize, word: u32| {
        let here = ids.iter().filter(|id| **id as usize / 32 == place);
        here.fold(word, |word, id| word & !(1 << (id % 32)))
    };
    let words = || mask.iter().enumerate();
    if !ids.is_empty() && words().any(|(place, word)| without(place, *word) != 0) {
        for (place, word) in mask.iter_mut().enumerate() {
            *word = without(place, *word);
        }
    }
}

fn failed(error: &str) -> TextError {
    TextError::GrammarFailed {
        reason: reason(error),
    }
}

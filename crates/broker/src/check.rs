//! Questions about policies that somebody applies, on their way from the evaluator to the loader.

use bytes::Bytes;
use portcullis_contract::{CheckVerdict, PolicyCheck};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};

use crate::ProvideError;

/// A question about a policy that somebody applies.
#[derive(Debug)]
pub struct CheckRequest {
    /// How long the answer may take.
    pub check: PolicyCheck,
    /// The policy, as JSON.
    pub policy: Bytes,
    /// Where the answer goes. Once it is closed, the evaluator no longer waits.
    pub reply: oneshot::Sender<CheckVerdict>,
}

/// The channel to the loader's checks; `None` where the installation does not check policies when they are applied.
pub(crate) struct Checks(Option<mpsc::Sender<CheckRequest>>);

impl Checks {
    /// A channel to the loader's checks; `None` where the installation does not check policies when they are applied.
    pub(crate) fn new(sender: Option<mpsc::Sender<CheckRequest>>) -> Self {
        Self(sender)
    }

    /// Asks the loader, and returns the verdict as JSON.
    ///
    /// # Errors
    /// When the loader does not answer, or too many questions are waiting.
    pub(crate) async fn ask(&self, check: PolicyCheck, policy: Bytes) -> Result<Bytes, ProvideError> {
        let Some(sender) = &self.0 else {
            return Err(ProvideError::failed("the loader checks no policies (--policy-checks)"));
        };
        let (reply, answer) = oneshot::channel();
        let request = CheckRequest { check, policy, reply };
        sender.try_send(request).map_err(|error| {
            ProvideError::failed(match error {
                TrySendError::Full(_) => "too many policies are being checked",
                TrySendError::Closed(_) => "the loader is ending",
            })
        })?;
        let verdict = answer.await.map_err(|_| ProvideError::failed("the check ended without an answer"))?;
        Ok(Bytes::from(serde_json::to_vec(&verdict).expect("has text keys only")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check() -> PolicyCheck {
        PolicyCheck { millis: 1000 }
    }

    #[tokio::test]
    async fn a_verdict_comes_back_as_json() {
        let (sender, mut requests) = mpsc::channel::<CheckRequest>(1);
        tokio::spawn(async move {
            let request = requests.recv().await.expect("a request");
            assert_eq!((request.check.millis, &*request.policy), (1000, &b"{}"[..]));
            request.reply.send(CheckVerdict::passed(Vec::new())).expect("somebody waits");
        });
        let answer = Checks::new(Some(sender)).ask(check(), Bytes::from_static(b"{}")).await.expect("an answer");
        let verdict: CheckVerdict = serde_json::from_slice(&answer).expect("a verdict");
        assert_eq!(verdict, CheckVerdict::passed(Vec::new()));
    }

    #[tokio::test]
    async fn who_cannot_be_asked_is_an_error() {
        let text = |error: ProvideError| error.to_string();
        let off = Checks::new(None).ask(check(), Bytes::new()).await.map_err(text).expect_err("off");
        assert!(off.contains("--policy-checks"), "{off}");
        let (sender, requests) = mpsc::channel(1);
        let checks = Checks::new(Some(sender));
        drop(requests);
        let ended = checks.ask(check(), Bytes::new()).await.map_err(text).expect_err("nobody answers");
        assert!(ended.contains("is ending"), "{ended}");
    }
}

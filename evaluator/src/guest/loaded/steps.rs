//! What [`LoadedModule::validate`] does, one step at a time, for [`crate::steps`].

use std::time::Instant;

use bytes::Bytes;
use portcullis_contract::Reason;

use super::{LoadedModule, evaluation_error};
use crate::guest::{CallError, Context, Guest, Operation, Parts, instantiate, store};
use crate::verdict::{EvaluationError, Verdict, reply};

impl LoadedModule {
    /// Makes an instance as a call does, and drops it. Its start function has run; `_start` and `wapc_init` have not.
    ///
    /// # Errors
    /// When it cannot be made, or the module is in Rego, whose calls prepare more than an instance.
    pub(crate) async fn instantiate(&self, deadline: Instant) -> Result<(), EvaluationError> {
        let (pre, limits) = match &*self.guest {
            Guest::Wapc(guest) => (&guest.pre, guest.limits),
            Guest::Wasi(guest) => (&guest.pre, guest.limits),
            Guest::Rego(_) => {
                let text = "modules in Rego are not instantiated by themselves";
                return Err(EvaluationError::new(Reason::ModuleUnsupported, text));
            }
        };
        let (account, _hold) = self.host.account(deadline);
        let mut store = store(pre.module().engine(), Context::new(&self.host, limits, deadline, account));
        let instance = instantiate(pre, &mut store).await;
        instance.map(|_| ()).map_err(|error| evaluation_error(&CallError::of(&error).init("start"), self.mode))
    }

    /// Calls a fresh instance with a request, and gives the bytes of its reply.
    ///
    /// # Errors
    /// When the guest fails, or is not done by `deadline`.
    pub(crate) async fn reply(&self, request: Bytes, deadline: Instant) -> Result<Vec<u8>, EvaluationError> {
        let payload = Parts::request(request, self.settings.clone());
        let (account, _hold) = self.host.account(deadline);
        let reply = self.guest.call(&self.host, Operation::Validate, payload, deadline, account).await;
        reply.map(|reply| reply.into_parts().0).map_err(|error| evaluation_error(&error, self.mode))
    }

    /// Decodes the reply of a module that is not in Rego.
    ///
    /// # Errors
    /// When it is not a verdict.
    pub(crate) fn decode(&self, reply: &[u8]) -> Result<Verdict, EvaluationError> {
        reply::verdict(reply, self.mode)
    }
}

//! What becomes known of a job while it runs.

use portcullis_process::Now;

use super::{Job, Plan};

impl Plan {
    /// Takes in how many bytes a running job has got so far, of how many if that is known. This is only shown, and changes no manifest.
    pub(crate) fn progress(&mut self, job: &Job, bytes: u64, total: Option<u64>, now: Now) {
        match job {
            Job::Fetch(reference) => {
                if let Some(module) = self.modules.get_mut(reference) {
                    module.progress(bytes, total, now);
                }
            }
            Job::Admit { reference, digest, .. } => {
                if let Some(admission) = self.admissions.get_mut(reference, digest) {
                    admission.progress(bytes, total, now);
                }
            }
            Job::Prepare { digest, .. } => {
                if let Some(compilation) = self.artifacts.get_mut(digest) {
                    compilation.attempts.progress(bytes, total, now);
                }
            }
        }
    }

    /// A running job was ended for another, and is back in its queue.
    pub(crate) fn wait_again(&mut self, job: &Job) {
        if let Job::Prepare { digest, .. } = job
            && let Some(compilation) = self.artifacts.get_mut(digest)
        {
            compilation.attempts.wait_again();
        }
    }
}

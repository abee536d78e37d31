//! Asks the API server which resources the cluster has, and remembers the answer for a while.

use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use portcullis_kubernetes::CallError;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use super::served::Served;

/// How long the API server may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// How old an answer may be.
const KNOWN: Duration = Duration::from_secs(30);
/// How old an answer may be before a resource is reported as missing: resources are added at any time, often together with policies.
const FRESH: Duration = Duration::from_secs(2);
/// How long the API server is left alone after a failure.
const PAUSE: Duration = Duration::from_secs(10);

/// The resources of a cluster.
pub(super) struct Discovery {
    /// `None` where policies come from a folder.
    client: Option<Client>,
    /// The last answer. Locked while the API server is asked, so that there is one request at a time.
    last: Mutex<Option<Answer>>,
}

struct Answer {
    at: Instant,
    /// `None` where the API server did not give an answer that can be used.
    served: Option<Arc<Served>>,
}

impl Discovery {
    pub(super) fn new(client: Option<Client>) -> Self {
        Self { client, last: Mutex::default() }
    }

    /// With an answer that a test has made up.
    #[cfg(test)]
    pub(super) fn of(client: Client, served: Served) -> Self {
        let last = Answer { at: Instant::now(), served: Some(Arc::new(served)) };
        Self { client: Some(client), last: Mutex::new(Some(last)) }
    }

    /// The client for the API server; `None` where policies come from a folder.
    pub(super) fn client(&self) -> Option<&Client> {
        self.client.as_ref()
    }

    /// The resources, up to half a minute old; `None` if the API server did not give them.
    pub(super) async fn known(&self) -> Option<Arc<Served>> {
        self.no_older_than(KNOWN).await
    }

    /// The resources, at most two seconds old; `None` if the API server did not give them.
    pub(super) async fn fresh(&self) -> Option<Arc<Served>> {
        self.no_older_than(FRESH).await
    }

    async fn no_older_than(&self, age: Duration) -> Option<Arc<Served>> {
        let client = self.client.as_ref()?;
        let mut last = self.last.lock().await;
        if let Some(Answer { at, served }) = &*last {
            let counts = if served.is_some() { age } else { PAUSE };
            if at.elapsed() < counts {
                return served.clone();
            }
        }
        let served = timeout(PATIENCE, ask(client)).await.unwrap_or_else(|_| {
            tracing::debug!("the API server does not say in time which resources it has");
            None
        });
        let served = served.map(Arc::new);
        *last = Some(Answer { at: Instant::now(), served: served.clone() });
        served
    }
}

async fn ask(client: &Client) -> Option<Served> {
    let asked = tokio::try_join!(client.list_core_api_versions_aggregated(), client.list_api_groups_aggregated());
    match asked {
        Ok((core, others)) => Served::of(core, others),
        Err(error) => {
            let error = CallError::from(error);
            tracing::debug!(%error, "failed to ask the API server which resources it has");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn without_an_api_server_nothing_is_known() {
        let discovery = Discovery::new(None);
        assert!(discovery.known().await.is_none() && discovery.fresh().await.is_none());
        assert!(discovery.client().is_none());
    }
}

//! The database of a cluster, asked directly through etcd's JSON interface: for tests in which it is full.

use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::Cluster;
use crate::client::Question;
use crate::command_line::ETCD_PORT;

impl Cluster {
    /// The alarms of etcd. `NOSPACE` is set since etcd refused a write because its database is full; from then on it refuses every
    /// write, but not deletions.
    ///
    /// # Panics
    /// When etcd does not answer.
    pub fn etcd_alarms(&self) -> Vec<String> {
        self.alarms().iter().map(|alarm| alarm["alarm"].as_str().unwrap_or_default().to_owned()).collect()
    }

    /// Does what an administrator does about a full database after objects were deleted: compacts and defragments it, and disarms its
    /// alarms.
    ///
    /// # Panics
    /// When etcd does not answer.
    pub fn free_etcd(&self) {
        // In this interface, 64-bit numbers are strings.
        let revision = self.ask_etcd("/v3/maintenance/status", &json!({}))["header"]["revision"].clone();
        self.ask_etcd("/v3/kv/compaction", &json!({ "revision": revision, "physical": true }));
        self.ask_etcd("/v3/maintenance/defragment", &json!({}));
        for alarm in self.alarms() {
            let disarm = json!({ "action": "DEACTIVATE", "memberID": alarm["memberID"], "alarm": alarm["alarm"] });
            self.ask_etcd("/v3/maintenance/alarm", &disarm);
        }
    }

    fn alarms(&self) -> Vec<Value> {
        let answer = self.ask_etcd("/v3/maintenance/alarm", &json!({ "action": "GET" }));
        // Without an alarm there is no such field.
        answer["alarms"].as_array().cloned().unwrap_or_default()
    }

    fn ask_etcd(&self, path: &str, body: &Value) -> Value {
        let (api, body) = (self.api(), body.to_string());
        let question = Question { method: "POST", path, content_type: "application/json", body: &body };
        let server = SocketAddr::from((self.layout.first_host(), ETCD_PORT));
        let (client, _) = api.parts();
        let (code, answer) = client.send(server, &question).unwrap_or_else(|error| panic!("etcd: {path}: {error}"));
        let answer: Value = serde_json::from_slice(&answer).unwrap_or_default();
        assert!(code == 200, "etcd: {path}: {code} {answer}");
        answer
    }
}

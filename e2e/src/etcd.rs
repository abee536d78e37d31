//! The database of a cluster, asked directly through etcd's JSON interface: for tests in which it is full.

use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::Cluster;
use crate::client::Client;
use crate::command_line::ETCD_PORT;
use crate::connection::Question;
use crate::wait::eventually;

/// A size limit for etcd's database that is much more than the control plane and an installation use, and that [`Cluster::fill_etcd`] reaches
/// within seconds.
pub const SMALL_DATABASE: u64 = 32 << 20;

/// The size of an object that fills the database, in bytes.
const FILLER: usize = 900 << 10;
/// So many of them are more than [`SMALL_DATABASE`].
const FILLERS: usize = 100;

impl Cluster {
    /// The alarms of etcd. `NOSPACE` is set since etcd refused a write because its database is full; from then on it refuses every
    /// write, but not deletions.
    ///
    /// # Panics
    /// When etcd does not answer.
    pub fn etcd_alarms(&self) -> Vec<String> {
        self.alarms().iter().map(|alarm| alarm["alarm"].as_str().unwrap_or_default().to_owned()).collect()
    }

    /// Creates large ConfigMaps in a namespace until etcd refuses one because its database is full, and waits for its alarm. Returns the
    /// paths of the ConfigMaps.
    ///
    /// # Panics
    /// When they do not fill it, because its limit is larger than [`SMALL_DATABASE`], or when an API server or etcd does not answer.
    pub fn fill_etcd(&self, namespace: &str) -> Vec<String> {
        let (path, data) = (format!("/api/v1/namespaces/{namespace}/configmaps"), "x".repeat(FILLER));
        let mut made = Vec::new();
        for number in 0..FILLERS {
            let name = format!("filler-{number}");
            let object = json!({
                "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name }, "data": { "data": data },
            });
            let reply = self.api().create(&path, &object).expect("an API server answers");
            if !reply.is_ok() {
                let message = reply.body["message"].as_str().unwrap_or_default();
                assert!(message.contains("database space exceeded"), "{} {message}", reply.code);
                eventually("the alarm", || (self.etcd_alarms() == ["NOSPACE"]).then_some(()));
                return made;
            }
            made.push(format!("{path}/{name}"));
        }
        panic!("{FILLERS} objects of {FILLER} bytes do not fill the database");
    }

    /// Deletes the objects at these paths, and does what an administrator does about a full database until it has no alarm.
    ///
    /// # Panics
    /// When the alarm stays, or when an API server or etcd does not answer.
    pub fn empty_etcd(&self, fillers: &[String]) {
        for filler in fillers {
            let deleted = self.api().delete(filler, None).expect("an API server answers");
            deleted.expect("a deletion takes no room");
        }
        eventually("the end of the alarm", || {
            self.free_etcd();
            self.etcd_alarms().is_empty().then_some(())
        });
    }

    /// Compacts and defragments the database, and disarms its alarms.
    fn free_etcd(&self) {
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
        let body = body.to_string();
        let question = Question { method: "POST", path, content_type: "application/json", body: body.as_bytes() };
        let server = SocketAddr::from((self.layout.first_host(), ETCD_PORT));
        let client = Client::of_etcd(&self.layout).unwrap_or_else(|error| panic!("{error}"));
        let reply = client.send(server, &question).unwrap_or_else(|error| panic!("etcd: {path}: {error}"));
        let (code, answer) = (reply.code, serde_json::from_slice::<Value>(&reply.body).unwrap_or_default());
        assert!(code == 200, "etcd: {path}: {code} {answer}");
        answer
    }
}

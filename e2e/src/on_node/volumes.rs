//! Volumes on the node's disk that pods may claim.

use serde_json::json;

use crate::node::paths::{NAME, folder, inside};
use crate::{Cluster, files};

/// The label of everything that belongs to a class.
const LABEL: &str = "portcullis-test-volumes";

impl Cluster {
    /// Makes a StorageClass and `count` volumes of it, on the node's disk; they outlive pods and the node's processes. They exist before the
    /// claims, as there is no provisioner. They are of the kind `local`: a pod's `fsGroup` applies to them, as to volumes of clouds, unlike
    /// `hostPath`. The names of volumes begin with that of the class.
    ///
    /// # Panics
    /// When there is no node, or the API server refuses.
    pub fn make_volumes(&self, class: &str, count: usize) {
        let node = json!({ "key": "kubernetes.io/hostname", "operator": "In", "values": [NAME] });
        let volume = |number: usize| {
            let name = format!("{class}-{number}");
            let path = format!("volumes/{name}");
            files::make_folder(&folder(&self.layout).join(&path)).unwrap_or_else(|error| panic!("{error}"));
            json!({
                "apiVersion": "v1", "kind": "PersistentVolume",
                "metadata": { "name": name, "labels": { LABEL: class } },
                "spec": {
                    "storageClassName": class,
                    "capacity": { "storage": "2Gi" },
                    "accessModes": ["ReadWriteOnce"],
                    // A local volume has no provisioner that could delete its data.
                    "persistentVolumeReclaimPolicy": "Retain",
                    "local": { "path": inside(&format!("{NAME}/{path}")) },
                    "nodeAffinity": { "required": { "nodeSelectorTerms": [{ "matchExpressions": [node.clone()] }] } },
                },
            })
        };
        let mut items: Vec<_> = (1..=count).map(volume).collect();
        items.push(json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
            "metadata": { "name": class, "labels": { LABEL: class } },
            "provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer",
        }));
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": items });
        self.apply(&list.to_string()).expect("volumes");
    }

    /// Removes what [`Cluster::make_volumes`] made. The data on the disk stay until the cluster is removed.
    ///
    /// # Panics
    /// When a claim still has one of the volumes, or the API server refuses.
    pub fn remove_volumes(&self, class: &str) {
        let label = format!("{LABEL}={class}");
        let delete = ["delete", "persistentvolumes,storageclasses", "--selector", &label, "--timeout=240s"];
        self.kubectl(delete).expect("volumes that go");
    }
}

//! The names and paths that the parts of a node share.

use std::path::{Path, PathBuf};

use crate::layout::Layout;

/// The name of the node; a cluster has at most one.
pub(crate) const NAME: &str = "node-1";

/// The image of pods that are only tests, and of the container that holds the namespaces of every pod. Its program can `serve`
/// at port 8080, `get` a URL, and `lookup` a name.
pub const POD_IMAGE: &str = "localhost/portcullis/pod:1";

/// The path of the cluster's folder on the node, where `kubernetes/node.go` mounts it.
const INSIDE: &str = "/run/cluster";

/// The folder of the node, below that of the cluster.
pub(crate) fn folder(layout: &Layout) -> PathBuf {
    layout.file(NAME)
}

/// The file that `kubernetes/node.go` writes when the namespaces are ready.
pub(crate) fn ready(layout: &Layout) -> PathBuf {
    folder(layout).join("ready")
}

/// A file of the folder of the cluster, as the node sees it.
pub(crate) fn inside(name: &str) -> String {
    Path::new(INSIDE).join(name).display().to_string()
}

//! Images and containers of the node of a cluster.

use std::path::Path;
use std::process::Stdio;

use crate::component::Component;
use crate::lock;
use crate::node::{import_archive, spawn};
use crate::{Cluster, Output};

impl Cluster {
    /// Puts the images of an archive on the node, as `docker save` writes it or in OCI layout with names. Pods get them with
    /// `imagePullPolicy: IfNotPresent` or `Never`; nothing can be pulled.
    ///
    /// # Panics
    /// When there is no node, or the archive cannot be read.
    pub fn import_image(&self, archive: &Path) {
        import_archive(self.node_process(), archive).unwrap_or_else(|error| panic!("{error}"));
    }

    /// The names of the images on the node, and their digests, as listed by `ctr images list`.
    ///
    /// # Panics
    /// When there is no node.
    pub fn images(&self) -> Vec<String> {
        let output = self.run_on_node(["ctr", "--namespace", "k8s.io", "images", "list", "--quiet"]);
        output.expect("the list of images").lines().map(str::to_owned).collect()
    }

    /// Runs a program of the machine in the namespaces of the node, as root.
    ///
    /// # Panics
    /// When there is no node, or `nsenter` cannot be started.
    pub fn run_on_node<'a>(&self, words: impl IntoIterator<Item = &'a str>) -> Output {
        let output = spawn::enter(self.node_process()).args(words).stdin(Stdio::null()).output();
        let output = output.unwrap_or_else(|error| panic!("failed to start nsenter: {error}"));
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Output { code: output.status.code(), stdout: text(&output.stdout), stderr: text(&output.stderr) }
    }

    /// Kills all processes of a container at once, as the kernel does when it has too little memory. The kubelet starts it again.
    ///
    /// # Panics
    /// When there is no such container, or it does not run.
    pub fn kill_container(&self, namespace: &str, pod: &str, container: &str) {
        let id = self.container_id(namespace, pod, container);
        let kill = ["ctr", "--namespace", "k8s.io", "tasks", "kill", "--all", "--signal", "SIGKILL", &id];
        self.run_on_node(kill).expect("the end of a container");
    }

    /// The id of a container in containerd, which is a new one after each restart.
    ///
    /// # Panics
    /// When there is no such container.
    pub fn container_id(&self, namespace: &str, pod: &str, container: &str) -> String {
        let get = ["get", "pod", pod, "--namespace", namespace, "--output=json"];
        let object = self.kubectl(get).json("the pod of a container");
        let all = ["initContainerStatuses", "containerStatuses"].map(|list| object["status"][list].as_array().cloned());
        let found = all.into_iter().flatten().flatten().find(|one| one["name"] == container);
        let id = found.as_ref().and_then(|one| one["containerID"].as_str()?.strip_prefix("containerd://"));
        id.unwrap_or_else(|| panic!("no container {container} of {namespace}/{pod} was started yet")).to_owned()
    }

    /// The first process of the node.
    fn node_process(&self) -> u32 {
        let started = lock(&self.started);
        let node = started.iter().find(|one| one.component == Component::Node);
        node.expect("the cluster has a node that runs: Options { node: true, .. }").process.pid
    }
}

//! Ends the node, or the whole cluster, and starts it again with its stored data.

use crate::Cluster;
use crate::component::Component;
use crate::start;

impl Cluster {
    /// Ends the node as a power cut would: all of its processes at once, including those of pods. The data on its disk
    /// stay.
    pub fn power_off_node(&self) {
        self.kill(Component::Node);
        for component in Component::OF_NODE {
            // They have ended with the first process already; this removes them from the records.
            self.kill(component);
        }
    }

    /// Starts the node again after [`Cluster::power_off_node`], and waits until it is ready. Its pods start again, in their own time.
    ///
    /// # Panics
    /// When it does not become ready.
    pub fn start_node(&self) {
        for component in Component::OF_NODE {
            self.start_again(component);
        }
        self.wait_for_node().unwrap_or_else(|error| panic!("{error}"));
    }

    /// Restarts kubelet and containerd, as an update of a node does. Containers run on.
    ///
    /// # Panics
    /// When they do not come back.
    pub fn restart_kubelet(&self) {
        for component in [Component::Kubelet, Component::Containerd] {
            self.stop(component);
        }
        for component in [Component::Containerd, Component::Kubelet] {
            self.start_again(component);
        }
        self.wait_for_node().unwrap_or_else(|error| panic!("{error}"));
    }

    /// Ends every process of the cluster, as a power cut of all machines would. Stored data stay.
    pub fn cut_all(&self) {
        for component in Component::in_order(&self.layout) {
            self.cut(component);
        }
    }

    /// Starts everything again after [`Cluster::cut_all`], and waits until the cluster is ready.
    ///
    /// # Panics
    /// When it does not become ready.
    pub fn start_all(&self) {
        // They may have moved to the second API server, which starts only after the controllers.
        start::write_components(&self.layout, 1).unwrap_or_else(|error| panic!("{error}"));
        for component in Component::in_order(&self.layout) {
            self.start_again(component);
        }
        self.wait_until_ready().unwrap_or_else(|error| panic!("{error}"));
    }
}

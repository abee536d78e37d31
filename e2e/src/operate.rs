//! Stops, pauses and restarts components of a running cluster.

use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use crate::Cluster;
use crate::component::Component;
use crate::lock;
use crate::start::{self, Started};

/// How long a component may take to end when it was asked to.
const GRACE: Duration = Duration::from_secs(10);

impl Cluster {
    /// Asks a component to end, and kills it if it still runs after some seconds. An API server then takes its address out of the
    /// EndpointSlice, and controllers and nodes go on at another one, if there is one. Does nothing if it is stopped already.
    ///
    /// # Panics
    /// When it does not end.
    pub fn stop(&self, component: Component) {
        self.end(component, &[Signal::TERM, Signal::CONT]);
        if let Component::ApiServer(number) = component {
            self.move_clients(number);
        }
    }

    /// Kills a component, as a crash would.
    ///
    /// # Panics
    /// When it does not end.
    pub fn kill(&self, component: Component) {
        self.end(component, &[Signal::KILL]);
        if let Component::ApiServer(number) = component {
            self.move_clients(number);
        }
    }

    /// Starts a stopped component again, and waits until it is ready. Does nothing if it runs.
    ///
    /// # Panics
    /// When it does not become ready.
    pub fn start_again(&self, component: Component) {
        if lock(&self.started).iter().any(|one| one.component == component) {
            return;
        }
        self.spawn(component).and_then(|()| self.wait_for(component)).unwrap_or_else(|error| panic!("{error}"));
    }

    /// Pauses a component (`SIGSTOP`): connections to it stay open, and it does not answer.
    pub fn pause(&self, component: Component) {
        self.signal(component, Signal::STOP);
    }

    /// Lets a paused component go on.
    pub fn resume(&self, component: Component) {
        self.signal(component, Signal::CONT);
    }

    fn signal(&self, component: Component, signal: Signal) {
        for one in lock(&self.started).iter().filter(|one| one.component == component && one.process.is_alive()) {
            let pid = i32::try_from(one.process.pid).ok().and_then(Pid::from_raw).expect("a process id");
            // It may have ended just now, with the node or by itself.
            let _ = rustix::process::kill_process(pid, signal);
            // `nsenter` stops together with the process that it has started in the node, and would then not see its
            // end.
            let starter = i32::try_from(one.child.id()).ok().and_then(Pid::from_raw).filter(|_| signal != Signal::STOP);
            let _ = starter.map(|starter| rustix::process::kill_process(starter, Signal::CONT));
        }
    }

    fn end(&self, component: Component, signals: &[Signal]) {
        for &signal in signals {
            self.signal(component, signal);
        }
        let mut started = lock(&self.started);
        let Some(index) = started.iter().position(|one| one.component == component) else { return };
        let Started { mut child, process, .. } = started.remove(index);
        drop(started);
        let start = Instant::now();
        while child.try_wait().expect("a child can be waited for").is_none() {
            if start.elapsed() > GRACE {
                process.kill().unwrap_or_else(|error| panic!("{error}"));
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Kills a component, and does not move the clients of an API server to another one.
    pub(crate) fn cut(&self, component: Component) {
        self.end(component, &[Signal::KILL]);
    }

    /// Restarts the components that were connected to an API server that has ended, with a running one.
    fn move_clients(&self, from: u8) {
        let runs = |component: Component| lock(&self.started).iter().any(|one| one.component == component);
        let path = self.layout.kubeconfig_of("kube-controller-manager");
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let is_there = text.contains(&format!("current-context: api-server-{from}\n"));
        let mut numbers = self.layout.api_server_numbers();
        let Some(to) = numbers.find(|&number| runs(Component::ApiServer(number))).filter(|_| is_there) else { return };
        let moved = start::write_components(&self.layout, to);
        moved.unwrap_or_else(|error| panic!("{error}"));
        for client in Component::CLIENTS.into_iter().filter(|&client| runs(client)) {
            self.end(client, &[Signal::KILL]);
            self.spawn(client).unwrap_or_else(|error| panic!("{error}"));
        }
    }
}

//! Components of a running cluster that end, hang and come back, as a test wants it.

use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use crate::cluster::lock;
use crate::component::Component;
use crate::{Cluster, start};

/// How long a component has to end after it was asked to.
const GRACE: Duration = Duration::from_secs(10);

impl Cluster {
    /// Asks a component to end, and kills it when it has not after some seconds. An API server then takes its address out of the
    /// EndpointSlice, and the controllers go on at another one, if there is one. When it is stopped already, nothing happens.
    ///
    /// # Panics
    /// When it does not end.
    pub fn stop(&self, component: Component) {
        self.end(component, &[Signal::TERM, Signal::CONT]);
        if let Component::ApiServer(number) = component {
            self.move_controllers(number);
        }
    }

    /// Kills a component, as a crash would.
    ///
    /// # Panics
    /// When it does not end.
    pub fn kill(&self, component: Component) {
        self.end(component, &[Signal::KILL]);
        if let Component::ApiServer(number) = component {
            self.move_controllers(number);
        }
    }

    /// Starts a component again that was stopped, and waits until it is ready. When it runs, nothing happens.
    ///
    /// # Panics
    /// When it does not become ready.
    pub fn start_again(&self, component: Component) {
        if lock(&self.started).iter().any(|one| one.component == component) {
            return;
        }
        self.spawn(component).and_then(|()| self.wait_for(component)).unwrap_or_else(|error| panic!("{error}"));
    }

    /// Stops a component where it is (`SIGSTOP`): connections to it stay open, and nobody answers.
    pub fn pause(&self, component: Component) {
        self.signal(component, Signal::STOP);
    }

    /// Lets a paused component go on.
    pub fn resume(&self, component: Component) {
        self.signal(component, Signal::CONT);
    }

    fn signal(&self, component: Component, signal: Signal) {
        for one in lock(&self.started).iter().filter(|one| one.component == component) {
            let pid = i32::try_from(one.child.id()).ok().and_then(Pid::from_raw).expect("a process id");
            rustix::process::kill_process(pid, signal).expect("the process is there");
        }
    }

    fn end(&self, component: Component, signals: &[Signal]) {
        for &signal in signals {
            self.signal(component, signal);
        }
        let mut started = lock(&self.started);
        let Some(index) = started.iter().position(|one| one.component == component) else { return };
        let mut child = started.remove(index).child;
        drop(started);
        let start = Instant::now();
        while child.try_wait().expect("a child can be waited for").is_none() {
            if start.elapsed() > GRACE {
                // It may end just now.
                let _ = child.kill();
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Starts the controllers again at an API server that runs, when they were at the one that has ended.
    fn move_controllers(&self, from: u8) {
        let runs = |number: &u8| lock(&self.started).iter().any(|one| one.component == Component::ApiServer(*number));
        let path = self.layout.controllers();
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let is_there = text.contains(&format!("current-context: api-server-{from}\n"));
        let Some(to) = self.layout.api_server_numbers().find(runs).filter(|_| is_there) else { return };
        let moved = start::write_controllers(&self.layout, to);
        moved.unwrap_or_else(|error| panic!("{error}"));
        let was_running = lock(&self.started).iter().any(|one| one.component == Component::ControllerManager);
        if was_running {
            self.end(Component::ControllerManager, &[Signal::KILL]);
            self.spawn(Component::ControllerManager).unwrap_or_else(|error| panic!("{error}"));
        }
    }
}

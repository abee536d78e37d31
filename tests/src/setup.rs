//! The setup of a pod: its programs, their settings, and what is broken from the start.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use portcullis_testkit::Bound;

use crate::address::Addresses;
use crate::canary::{self, Calls};
use crate::files::open_to_all;
use crate::{
    Authority, CANARY, Canary, Client, Folder, Launch, Pod, Policy, Process, Program, Secret, Stalls, address, program,
};

/// The setup of a pod.
#[derive(Debug, Clone)]
pub struct PodSetup {
    root: PathBuf,
    volume: PathBuf,
    plain_http: bool,
    separate_users: bool,
    loader: Option<Knobs>,
    evaluator: Option<Knobs>,
    reporter: Option<Knobs>,
    canary: Watch,
}

/// The test's settings for the canary, with a reason for each that is not the default.
#[derive(Debug, Clone)]
struct Watch {
    /// Whether the folder has the canary policy.
    is_there: bool,
    /// Why the canary is not called; `None` if it is.
    absent: Option<&'static str>,
    limit: Duration,
    is_paused: bool,
}

#[derive(Debug, Clone, Default)]
struct Knobs {
    flags: Vec<(String, String)>,
    switches: Vec<String>,
    env: Vec<(String, String)>,
    wrapper: Vec<String>,
}

impl Knobs {
    fn new(flags: &[(&str, &str)]) -> Self {
        let flags = flags.iter().map(|(flag, value)| ((*flag).to_owned(), (*value).to_owned())).collect();
        Self { flags, ..Self::default() }
    }

    fn set(&mut self, flag: &str, value: String) {
        self.flags.retain(|(name, _)| name != flag);
        self.flags.push((flag.to_owned(), value));
    }

    fn args(&self) -> Vec<OsString> {
        let flags = self.flags.iter().flat_map(|(flag, value)| [flag.into(), value.into()]);
        flags.chain(self.switches.iter().map(OsString::from)).collect()
    }
}

impl Pod {
    /// A pod with all three programs on a folder, with a valid certificate. Failures are retried faster than by default, so that tests
    /// see the retries.
    pub fn on(folder: &Folder) -> PodSetup {
        PodSetup::new(folder)
    }
}

impl PodSetup {
    /// All three programs, with settings for tests.
    pub(crate) fn new(folder: &Folder) -> Self {
        folder.identify(&Authority::shared().identity(&[&address::loopback().to_string(), "localhost"]));
        Self {
            root: folder.path(""),
            volume: folder.volume(),
            plain_http: false,
            separate_users: false,
            loader: Some(Knobs::new(&[
                ("--retry-initial", "200ms"),
                ("--retry-cap", "2s"),
                ("--retry-outside", "2s"),
                ("--allow-private", "127.0.0.0/8"),
                ("--policy-paths", "on"),
                // A debug build on a busy machine takes minutes for a guest in Go.
                ("--compile-time", "10m"),
            ])),
            evaluator: Some(Knobs::new(&[
                ("--start-gate", "5s"),
                ("--drain-delay", "500ms"),
                ("--policy-paths", "on"),
                // As long as the API server waits, so that a short stall of the machine does not change a verdict.
                ("--policy-timeout", "10s"),
            ])),
            reporter: Some(Knobs::new(&[("--table", "lines")])),
            canary: Watch {
                is_there: folder.has(&Policy::cluster(CANARY)),
                absent: None,
                limit: canary::IN_TIME,
                is_paused: false,
            },
        }
    }

    /// Does not call the canary, for this reason. A test of a row of the fault catalogue has a canary or gives a
    /// reason.
    #[must_use]
    pub fn without_canary(mut self, reason: &'static str) -> Self {
        self.canary.absent = Some(reason);
        self
    }

    /// Sets another limit for answers of the canary than the second of I1, for this reason.
    #[must_use]
    pub fn canary_within(mut self, limit: Duration, reason: &'static str) -> Self {
        eprintln!("the canary has {limit:?} here: {reason}");
        self.canary.limit = limit;
        self
    }

    /// Calls the canary only after [`Canary::resume`], for this reason.
    #[must_use]
    pub fn canary_later(mut self, reason: &'static str) -> Self {
        eprintln!("the canary waits here: {reason}");
        self.canary.is_paused = true;
        self
    }

    /// Sets a flag of the loader.
    #[must_use]
    pub fn loader(self, flag: &str, value: impl ToString) -> Self {
        self.flag(Program::Loader, flag, value)
    }

    /// Sets a flag of the evaluator.
    #[must_use]
    pub fn evaluator(self, flag: &str, value: impl ToString) -> Self {
        self.flag(Program::Evaluator, flag, value)
    }

    fn flag(mut self, program: Program, flag: &str, value: impl ToString) -> Self {
        self.knobs(program).set(flag, value.to_string());
        self
    }

    /// Leaves out a setting of the tests, so that the program's own default applies.
    #[must_use]
    pub fn by_default(mut self, program: Program, flag: &str) -> Self {
        self.knobs(program).flags.retain(|(name, _)| name != flag);
        self
    }

    /// Adds flags without a value, or flags that may be there more than once.
    #[must_use]
    pub fn with(mut self, program: Program, args: &[&str]) -> Self {
        self.knobs(program).switches.extend(args.iter().map(|&arg| arg.to_owned()));
        self
    }

    /// Arms fail points: `loader.after_artifact_rename=exit`.
    #[must_use]
    pub fn fail_points(self, program: Program, points: &str) -> Self {
        self.env(program, "PORTCULLIS_FAILPOINTS", points)
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn env(mut self, program: Program, name: &str, value: &str) -> Self {
        self.knobs(program).env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Starts the program through another command that ends in `exec`, for instance `prlimit --nofile=64`.
    #[must_use]
    pub fn through(mut self, program: Program, command: &[&str]) -> Self {
        self.knobs(program).wrapper = command.iter().map(|&word| word.to_owned()).collect();
        self
    }

    fn knobs(&mut self, program: Program) -> &mut Knobs {
        let knobs = match program {
            Program::Loader => &mut self.loader,
            Program::Evaluator => &mut self.evaluator,
            Program::Reporter | Program::Cli => &mut self.reporter,
        };
        knobs.as_mut().unwrap_or_else(|| panic!("the pod has no {program}"))
    }

    /// Leaves a program out.
    #[must_use]
    pub fn without(mut self, program: Program) -> Self {
        match program {
            Program::Loader => self.loader = None,
            Program::Evaluator => self.evaluator = None,
            Program::Reporter | Program::Cli => self.reporter = None,
        }
        self
    }

    /// Uses another volume than the folder's.
    #[must_use]
    pub fn volume(mut self, path: &Path) -> Self {
        path.clone_into(&mut self.volume);
        self
    }

    /// Makes the admission port speak plain HTTP.
    #[must_use]
    pub fn plain_http(mut self) -> Self {
        self.plain_http = true;
        self
    }

    /// Runs the evaluator as another user than the loader, as in a cluster. Needs root.
    #[must_use]
    pub fn separate_users(mut self) -> Self {
        self.separate_users = true;
        self
    }

    /// Starts the programs and waits until all are ready, and the canary policy is served.
    ///
    /// # Panics
    /// When one is not ready in time.
    pub fn start(self) -> Pod {
        let pod = self.begin();
        pod.wait_ready();
        if pod.canary.is_some() {
            pod.wait_current(&canary::id(), 1);
        }
        pod
    }

    /// Copies a program to a folder that every user can reach, unlike the folder in which it was built.
    fn open_copy(&self, program_: Program) -> PathBuf {
        let copy = self.root.join(program_.name());
        std::fs::copy(program(program_), &copy).expect("a copy of the program");
        copy
    }

    /// Starts the programs and waits only until their ports are open.
    ///
    /// # Panics
    /// When one does not open its ports in time.
    pub fn begin(self) -> Pod {
        // Tests that measure times need this from the start.
        Stalls::watch();
        let addresses = Addresses::take();
        let folder = |name: &str| self.root.join(name).to_string_lossy().into_owned();
        let volume = self.volume.to_string_lossy().into_owned();
        let user = self.separate_users.then_some(65_534);
        if let Some(user) = user {
            for name in ["private", "broker"] {
                std::os::unix::fs::chown(self.root.join(name), Some(user), Some(user))
                    .expect("only root can run programs as other users");
            }
            open_to_all(&self.volume);
        }
        let launch = |program_: Program, knobs: &Knobs, own: Vec<(&str, String)>, user: Option<u32>| {
            let mut all = Knobs { flags: Vec::new(), ..knobs.clone() };
            for (flag, value) in own {
                all.set(flag, value);
            }
            all.set("--log-format", "json".to_owned());
            all.set("--probe-address", addresses.probes(program_).to_string());
            for (flag, value) in &knobs.flags {
                all.set(flag, value.clone());
            }
            if program_ == Program::Evaluator && self.plain_http {
                all.switches.push("--plain-http".to_owned());
            }
            Arc::new(Process::start(Launch {
                name: program_.name().to_owned(),
                program: match user {
                    Some(_) => self.open_copy(program_),
                    None => program(program_),
                },
                args: all.args(),
                env: all.env,
                wrapper: all.wrapper,
                user,
            }))
        };
        let states = [Program::Evaluator, Program::Loader].map(|program| addresses.state(program).to_string());
        let [evaluator_state, loader_state] = states;
        let evaluator = self.evaluator.as_ref().map(|knobs| {
            let mut own = vec![
                ("--volume", volume.clone()),
                ("--private-dir", folder("private")),
                ("--broker-socket", folder("broker/broker.sock")),
                ("--address", addresses.admission().to_string()),
                ("--state-address", evaluator_state.clone()),
            ];
            if !self.plain_http {
                own.push(("--tls-dir", folder("tls")));
            }
            if user.is_some() {
                own.push(("--broker-user", rustix::process::geteuid().as_raw().to_string()));
            }
            launch(Program::Evaluator, knobs, own, user)
        });
        let loader = self.loader.as_ref().map(|knobs| {
            let mut own = vec![
                ("--volume", volume.clone()),
                ("--state-address", loader_state.clone()),
                ("--broker-socket", folder("broker/broker.sock")),
                ("--evaluator-state", evaluator_state.clone()),
            ];
            if let Some(user) = user {
                own.push(("--evaluator-user", user.to_string()));
            }
            if !knobs.flags.iter().any(|(flag, _)| flag == "--policies") {
                own.push(("--dir", folder("policies")));
            }
            launch(Program::Loader, knobs, own, None)
        });
        let reporter = self.reporter.as_ref().map(|knobs| {
            let own = vec![
                ("--loader-state", loader_state.clone()),
                ("--evaluator-state", evaluator_state.clone()),
                ("--status-dir", folder("status")),
            ];
            launch(Program::Reporter, knobs, own, None)
        });
        let client = || match self.plain_http {
            true => Client::plain(addresses.admission()),
            false => Client::tls(addresses.admission()),
        };
        let state = Client::plain(addresses.state(Program::Evaluator));
        let canary = evaluator.clone().and_then(|evaluator| self.canary(client(), state, evaluator));
        let pod = Pod {
            canary,
            loader,
            evaluator,
            reporter,
            root: self.root,
            volume: self.volume,
            plain_http: self.plain_http,
            addresses,
            client: client(),
        };
        for process in pod.processes() {
            process.address("probes");
        }
        pod
    }

    /// The canary for an evaluator, if it is to be called.
    fn canary(&self, client: Client, state: Client, evaluator: Arc<Process>) -> Option<Canary> {
        let Watch { is_there, absent, limit, is_paused } = self.canary;
        if let Some(reason) = absent {
            eprintln!("no canary here: {reason}");
            return None;
        }
        let reads_folder = |loader: &Knobs| !loader.flags.iter().any(|(flag, _)| flag == "--policies");
        let is_wanted = is_there && self.loader.as_ref().is_none_or(reads_folder);
        assert!(
            is_wanted || Bound::of_this_test().is_none(),
            "a test of a row of the fault catalogue has a canary (Folder::with_canary), or says why not (without_canary)"
        );
        is_wanted.then(|| {
            let secret = Secret::planted_in("object").text().to_owned();
            Canary::start(Calls { client, state, evaluator, secret, limit, is_paused })
        })
    }
}

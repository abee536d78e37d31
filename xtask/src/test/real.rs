//! Tests of the real programs: on folders, on control planes, and installed by the chart.

use std::ffi::OsString;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};

use super::{BLACK_BOX, Need, Plan, Tests, collector, position};
use crate::executables::Executable;
use crate::programs::Profile;
use crate::step::Step;
use crate::{cluster, e2e, network, tools};

/// The folder of the tests that start clusters; each of its folders is a binary.
pub(super) const CLUSTER_TESTS: &str = "e2e/tests/";

/// The tests of the chart's output, alerts included.
const CHART_TESTS: &str = "chart";

/// The slowest of the tests that start clusters, besides those of the chart's promises, in the order in which they begin. Those of the status
/// wait more than they compute: they would leave the machine idle in the end.
const SLOWEST: [&str; 6] = ["promises", "status", "webhooks", "certificates", "revisions", CHART_TESTS];

/// The modules of cluster tests that need much of the machine, by their binary: those with many replicas or policies make the canaries
/// of other tests late, and audits have less claim to the processor than everything else.
const ALONE_ON_CLUSTERS: [(&str, &[&str]); 2] =
    [("promises", &["check_impact::", "fleet::", "source_back::"]), ("webhooks", &["many::"])];

/// The longest that a step of cluster tests may take. The slowest one took 53 minutes on two cores beside a release build.
const LIMIT: Duration = Duration::from_secs(60 * 60);

/// The black-box tests that need the machine to themselves.
const ALONE: &str = "alone";

/// The module of those that need only a machine that is not busy: they count.
const COUNTING: &str = "costs::";

/// Black-box tests with registries, which are all in modules of this name.
const REGISTRIES: &str = "registries::";

/// The end of the paths of these modules.
const REGISTRIES_FILE: &str = "/registries.rs";

impl<'a> Plan<'a> {
    /// The slowest tests come first, so that they do not run alone at the end.
    pub(super) fn real_tests(&self) -> Result<Vec<Tests<'a>>> {
        if self.wanted.no_cluster {
            return Ok(self.black_box());
        }
        if let Err(missing) = if self.wanted.list { Ok(()) } else { cluster::possible() } {
            let words = format!("nothing was tested with Kubernetes: {missing:#}");
            let step = Step::skip("cluster: tests", words).leaving_out(CLUSTER_TESTS);
            let skipped = Tests { step, needs: &[] };
            return Ok(self.black_box().into_iter().chain([skipped]).collect());
        }
        Ok([vec![self.chart()], self.black_box(), self.clusters()?].into_iter().flatten().collect())
    }

    fn black_box(&self) -> Vec<Tests<'a>> {
        let (mut args, mut all) = (self.args(), Vec::new());
        if let Err(missing) = if self.wanted.list { Ok(()) } else { tools::registry() } {
            args.extend(["--skip".into(), REGISTRIES.into()]);
            let words = format!("nothing was tested with a registry: {missing:#}");
            let step = Step::skip("black-box: registries", words).leaving_out(REGISTRIES_FILE);
            all.push(Tests { step, needs: &[] });
        }
        all.push(self.on_programs("black-box: tests", args, |target| target != ALONE));
        all
    }

    /// The black-box tests that must run alone.
    pub(super) fn alone(&self) -> Tests<'a> {
        let mut args = self.args();
        if self.separates() {
            args.extend(["--skip", COUNTING].map(OsString::from));
        }
        self.on_alone("black-box: tests that compare times", args)
    }

    fn on_alone(&self, name: &str, mut args: Vec<OsString>) -> Tests<'a> {
        args.extend(["--test-threads", "1"].map(OsString::from));
        let tests = self.on_programs(name, args, |target| target == ALONE);
        Tests { needs: &[Need::Counters, Need::Programs, Need::Guests], ..tests }
    }

    /// The tests that run beside few others: those that count, and the cluster tests that need much of the machine.
    pub(super) fn beside_few(&self) -> Vec<Tests<'a>> {
        if !self.separates() {
            return Vec::new();
        }
        let counting = self.on_alone("black-box: tests that count, one by one", vec![COUNTING.into()]);
        self.alone_on_clusters().into_iter().chain([counting]).collect()
    }

    fn alone_on_clusters(&self) -> Vec<Tests<'a>> {
        if self.wanted.no_cluster || (!self.wanted.list && cluster::possible().is_err()) {
            return Vec::new();
        }
        let of_binary = |(target, modules): (&str, &[&str])| {
            let args = modules.iter().chain(&["--test-threads", "1"]).map(OsString::from);
            self.on_cluster(format!("cluster: tests {target}, one by one"), target.to_owned(), args)
        };
        ALONE_ON_CLUSTERS.map(of_binary).into()
    }

    /// Whether the tests that must run alone, or beside few others, do so. With arguments, which may select tests, all tests of a binary run
    /// together.
    fn separates(&self) -> bool {
        self.args().is_empty()
    }

    fn on_programs(&self, name: &str, args: Vec<OsString>, is_wanted: impl Fn(&str) -> bool + Send + 'a) -> Tests<'a> {
        let executables = self.executables;
        let (programs, guests) = (self.workspace.bin_dir(Profile::Dev.dir()), self.guests_dir());
        let mutants = self.mutants();
        let step = Step::commands(name, move || {
            let is_wanted = |one: &Executable| one.is_test && one.package == BLACK_BOX && is_wanted(&one.target);
            let mut commands = executables.start(is_wanted, &args)?;
            for command in &mut commands {
                command.env("PORTCULLIS_BIN_DIR", &programs).env("PORTCULLIS_MUTANTS", &mutants);
                if guests.is_dir() {
                    command.env("PORTCULLIS_GUESTS_DIR", &guests);
                }
            }
            Ok(commands)
        });
        Tests { step, needs: &[Need::Programs, Need::Guests] }
    }

    /// The tests that start real control planes: a step per binary, each in its own network namespace.
    fn clusters(&self) -> Result<Vec<Tests<'a>>> {
        let package = self.workspace.packages.iter().find(|package| package.name == cluster::PACKAGE);
        let mut targets = package.context("the crate of the cluster tests is a member")?.test_targets();
        targets.retain(|target| target != e2e::TESTS);
        targets.sort_by_key(|target| position(&SLOWEST, target));
        let mut all: Vec<_> = targets.into_iter().map(|target| self.cluster(target)).collect();
        let name = "cluster: alerts of the chart";
        let is_wanted = self.selects(name) || self.selects(&format!("cluster: tests {CHART_TESTS}"));
        if is_wanted
            && !self.wanted.list
            && let Err(missing) = tools::alerts()
        {
            all.push(Tests { step: Step::skip(name, format!("they were not tried: {missing:#}")), needs: &[] });
        }
        Ok(all)
    }

    fn cluster(&self, target: String) -> Tests<'a> {
        let name = format!("cluster: tests {target}");
        if target == cluster::NODE_TESTS
            && let Some(skipped) = self.skipped_without_node(&name, "no pod was run on a node", "e2e/tests/node/")
        {
            return skipped;
        }
        // They share a cluster and two cores with each other and with those of another binary.
        let mut args = vec!["--test-threads", "2"];
        if self.separates() {
            let alone = ALONE_ON_CLUSTERS.iter().filter(|(of, _)| *of == target).flat_map(|(_, modules)| *modules);
            args.extend(alone.flat_map(|module| ["--skip", module]));
        }
        self.on_cluster(name, target, args.into_iter().map(OsString::from))
    }

    fn on_cluster(&self, name: String, target: String, own: impl IntoIterator<Item = OsString>) -> Tests<'a> {
        let mut args = self.args();
        args.push("--include-ignored".into());
        args.extend(own);
        let programs = self.workspace.bin_dir(Profile::Dev.dir());
        let step = self.in_own_network(name, target, args, move |command| {
            command.env("PORTCULLIS_BIN_DIR", &programs);
        });
        Tests { step, needs: &[Need::Programs, Need::Kubernetes] }
    }

    /// The tests of the chart's promises, on images that are made for them.
    fn chart(&self) -> Tests<'a> {
        let name = format!("cluster: tests {}", e2e::TESTS);
        let folder = "e2e/tests/chart_promises/";
        if let Some(skipped) = self.skipped_without_node(&name, "the chart was not installed", folder) {
            return skipped;
        }
        let workspace = self.workspace;
        let step = self.in_own_network(name, e2e::TESTS.to_owned(), self.args(), move |command| {
            e2e::set_up(command, workspace);
        });
        Tests { step, needs: &[Need::Images, Need::Kubernetes] }
    }

    fn in_own_network(
        &self,
        name: String,
        target: String,
        args: Vec<OsString>,
        set_up: impl Fn(&mut Command) + Send + 'a,
    ) -> Step<'a> {
        let executables = self.executables;
        Step::commands(name, move || {
            let wanted = executables.start(
                |one| one.is_test && one.package == cluster::PACKAGE && one.kind == "test" && one.target == target,
                &args,
            )?;
            let inside = |mut command: Command| {
                command.envs(collector::environment());
                set_up(&mut command);
                network::inside_own(&command)
            };
            wanted.into_iter().map(inside).collect()
        })
        .within(LIMIT)
    }

    /// A step that is skipped, and says what is missing, if this machine cannot run a node; as root on Debian, packages are installed
    /// first. The tests in `folder` are left out then.
    fn skipped_without_node(&self, name: &str, what: &str, folder: &'static str) -> Option<Tests<'a>> {
        if self.wanted.list || !self.selects(name) {
            return None;
        }
        let missing = tools::node().err()?;
        let step = Step::skip(name, format!("{what}: {missing:#}")).leaving_out(folder);
        Some(Tests { step, needs: &[] })
    }
}

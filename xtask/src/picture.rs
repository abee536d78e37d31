//! The picture of the README: a policy is broken and mended. The programs and their outputs are real; only the drawing is made here.

mod drawing;

use std::fs;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use self::drawing::Screen;
use crate::programs::{self, PROGRAMS, Profile};
use crate::workspace::Workspace;

const PICTURE: &str = "docs/break-and-mend.svg";
const ADDRESS: &str = "127.0.0.1:8443";
const POLICY: &str = "namespaced/default/required-labels";
const REQUEST: &str = "@examples/requests/pod-without-labels.json";
const LIMIT: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(100);

/// Runs the scene on a copy of the examples and writes the picture.
///
/// # Errors
/// When a program does not build or start, and when a step does not end as the README says.
pub(crate) fn run(workspace: &Workspace) -> Result<ExitCode> {
    programs::build(workspace, &PROGRAMS, Profile::Dev)?;
    let stage = workspace.root.join("target/picture");
    if stage.exists() {
        fs::remove_dir_all(&stage)?;
    }
    copy(&workspace.root.join("examples"), &stage.join("examples"))?;
    let program = workspace.bin_dir(Profile::Dev.dir()).join("portcullis");
    let screen = Scene::start(&program, &stage)?.play()?;
    let path = workspace.root.join(PICTURE);
    fs::write(&path, screen.svg()).with_context(|| format!("failed to write {}", path.display()))?;
    println!("{PICTURE} is drawn");
    Ok(ExitCode::SUCCESS)
}

/// A folder of policies that is served.
struct Scene<'s> {
    program: &'s Path,
    stage: &'s Path,
    served: Child,
}

impl<'s> Scene<'s> {
    fn start(program: &'s Path, stage: &'s Path) -> Result<Self> {
        let log = fs::File::create(stage.join("run.log"))?;
        let mut run = Command::new(program);
        run.args(["run", "examples", "--plain-http", "--table", "lines", "--address", ADDRESS]);
        let served = run.current_dir(stage).stdout(log.try_clone()?).stderr(log).stdin(Stdio::null()).spawn();
        let served = served.with_context(|| format!("failed to start {}", program.display()))?;
        Ok(Self { program, stage, served })
    }

    fn play(&self) -> Result<Screen> {
        let mut screen = Screen::default();
        let get = ["get", "--dir", "examples", "-o", "wide"];
        screen.command("portcullis run examples --plain-http &", 0.5);
        self.wait("Active")?;
        screen.command("portcullis get --dir examples -o wide", 1.0);
        screen.output(&self.portcullis(&get)?);

        screen.command("sed -i 's/- team$/- Team Name/' examples/required-labels.yaml    # break it", 2.0);
        self.edit("- team\n", "- Team Name\n")?;
        self.wait("ServingPrevious")?;
        screen.command("portcullis get --dir examples -o wide", 1.5);
        screen.output(&self.portcullis(&get)?);
        screen.command("portcullis describe required-labels -n default --dir examples | grep 'Ready  '", 1.5);
        let described = self.portcullis(&["describe", "required-labels", "-n", "default", "--dir", "examples"])?;
        screen.output(described.lines().find(|line| line.contains("Ready  ")).context("the condition Ready")?);

        let url = format!("http://{ADDRESS}/validate/{POLICY}");
        screen.command(&format!("curl -s --json {REQUEST} {url} | jq .response    # who answers?"), 2.0);
        screen.output(&self.ask(&url)?);

        screen.command("sed -i 's/- Team Name$/- team/' examples/required-labels.yaml    # mend it", 2.5);
        self.edit("- Team Name\n", "- team\n")?;
        self.wait("Active")?;
        screen.command("portcullis get --dir examples -o wide", 1.5);
        screen.output(&self.portcullis(&get)?);
        Ok(screen)
    }

    fn edit(&self, from: &str, to: &str) -> Result<()> {
        let path = self.stage.join("examples/required-labels.yaml");
        let text = fs::read_to_string(&path)?;
        ensure!(text.contains(from), "{} has no {from:?}", path.display());
        Ok(fs::write(&path, text.replace(from, to))?)
    }

    fn portcullis(&self, args: &[&str]) -> Result<String> {
        let output = Command::new(self.program).args(args).current_dir(self.stage).output()?;
        let text = String::from_utf8(output.stdout)?;
        ensure!(output.status.success(), "portcullis {}: {text}", args.join(" "));
        Ok(text)
    }

    /// Waits until the edited policy has this status, and a moment longer, so that ages are not all `0s`.
    fn wait(&self, status: &str) -> Result<()> {
        let start = Instant::now();
        let is_there = |text: &str| text.lines().any(|line| line.contains(POLICY) && line.contains(status));
        while !self.portcullis(&["get", "--dir", "examples"]).is_ok_and(|text| is_there(&text)) {
            ensure!(start.elapsed() < LIMIT, "{POLICY} does not become {status}; see {}", self.stage.display());
            thread::sleep(POLL);
        }
        thread::sleep(Duration::from_secs(1));
        Ok(())
    }

    fn ask(&self, url: &str) -> Result<String> {
        let mut curl = Command::new("curl");
        curl.args(["-sS", "-H", "Content-Type: application/json", "--data-binary", REQUEST, url]);
        let output = curl.current_dir(self.stage).output().context("failed to start curl")?;
        let review: Value = serde_json::from_slice(&output.stdout).context("the answer is not JSON")?;
        Ok(serde_json::to_string_pretty(&review["response"])?)
    }
}

impl Drop for Scene<'_> {
    fn drop(&mut self) {
        // It ends its three child processes when it is interrupted.
        let ended = Command::new("kill").args(["-INT", &self.served.id().to_string()]).status();
        if ended.is_ok_and(|status| status.success()) {
            let _ = self.served.wait();
        }
    }
}

/// The files of a folder, without those that a run left there.
fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_name() == ".portcullis" {
            continue;
        }
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

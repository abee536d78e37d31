//! How long, with which seed, and how to have the same again.

use std::env;
use std::thread;
use std::time::Duration;

use portcullis_e2e::note;

/// How long things go wrong, like `1h`; a minute when absent.
const FAULTS_FOR: &str = "PORTCULLIS_E2E_FAULTS_FOR";

/// The number that the faults follow from; another one each time when absent.
const SEED: &str = "PORTCULLIS_E2E_SEED";

/// One run of random faults. The command that repeats it is written at its start, and again when the test fails.
#[derive(Debug)]
pub(super) struct Run {
    /// How long it lasts.
    pub(super) time: Duration,
    /// What the faults follow from.
    pub(super) seed: u64,
}

impl Run {
    /// As the environment says.
    pub(super) fn from_env() -> Self {
        let set = |name| env::var(name).ok().filter(|value| !value.is_empty());
        let run = Self::of(set(FAULTS_FOR).as_deref(), set(SEED).as_deref()).unwrap();
        // Not printed, which libtest keeps to itself until the test fails: a run that hangs or is killed has said its seed.
        note(&format!("random faults for {}: {}", humantime::format_duration(run.time), run.command()));
        run
    }

    fn of(time: Option<&str>, seed: Option<&str>) -> Result<Self, String> {
        let read =
            |text| humantime::parse_duration(text).map_err(|error| format!("{FAULTS_FOR}={text}: {error}; want 90s"));
        let time = time.map_or(Ok(Duration::from_secs(60)), read)?;
        let read = |text: &str| text.parse().map_err(|error| format!("{SEED}={text}: {error}; want a number"));
        let seed = seed.map_or_else(|| Ok(fastrand::u64(..)), read)?;
        Ok(Self { time, seed })
    }

    fn command(&self) -> String {
        let time = humantime::format_duration(self.time).to_string().replace(' ', "");
        format!("cargo xtask e2e --seed {} --faults-for {time} -- fault_k12", self.seed)
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if thread::panicking() {
            note(&format!("the same faults in the same order: {}", self.command()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_says_how_to_repeat_it() {
        let run = Run::of(Some("1h 30m"), Some("17")).unwrap();
        assert_eq!(run.command(), "cargo xtask e2e --seed 17 --faults-for 1h30m -- fault_k12");
        assert_eq!(Run::of(None, Some("18446744073709551615")).unwrap().seed, u64::MAX);
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        assert!(Run::of(Some("soon"), None).unwrap_err().starts_with("PORTCULLIS_E2E_FAULTS_FOR=soon: "));
        assert!(Run::of(None, Some("-1")).unwrap_err().starts_with("PORTCULLIS_E2E_SEED=-1: "));
    }
}

//! The duration and the seed of a run, and the command that repeats it.

use std::env;
use std::thread;
use std::time::Duration;

use portcullis_e2e::note;

/// The variable with the duration of the faults, like `1h`; a minute if it is not set.
const FAULTS_FOR: &str = "PORTCULLIS_E2E_FAULTS_FOR";

/// The variable with the seed of the faults, a number; a random one if it is not set.
const SEED: &str = "PORTCULLIS_E2E_SEED";

/// One run of random faults. The command that repeats it is written at its start, and again when the test fails.
#[derive(Debug)]
pub(super) struct Run {
    /// The duration of the faults.
    pub(super) time: Duration,
    /// The seed of the faults.
    pub(super) seed: u64,
}

impl Run {
    /// Reads the run from the environment, and logs the command that repeats it.
    pub(super) fn from_env() -> Self {
        let set = |name| env::var(name).ok().filter(|value| !value.is_empty());
        let run = Self::of(set(FAULTS_FOR).as_deref(), set(SEED).as_deref()).unwrap();
        // libtest would show printed lines only after a failure, so that the seed of a run that hangs or is killed would be lost.
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

    /// The command that repeats it.
    pub(super) fn command(&self) -> String {
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

//! Named points where a test makes a program fail, compiled into debug builds only.
//!
//! `PORTCULLIS_FAILPOINTS=loader.after_artifact_rename=exit;evaluator.tick=hang` arms them at start. The actions are: `exit`
//! (status 86, at once), `panic`, `hang` (for ever), `wait(<file>)` (until this file exists), `delay(<duration>)`, `error`, and
//! `<n>*<action>` for the first n times. With `@<file>` after the action, nothing happens until this file exists:
//! `evaluator.tick=hang@/tmp/now`.

use std::time::Duration;

#[cfg(debug_assertions)]
mod armed {
    use std::collections::HashMap;
    use std::path::PathBuf;
    use std::sync::{LazyLock, Mutex};

    pub(super) struct Point {
        pub(super) action: String,
        pub(super) left: u64,
        /// The file that must exist for anything to happen; `None` for always.
        pub(super) trigger: Option<PathBuf>,
    }

    impl Point {
        pub(super) fn is_due(&self) -> bool {
            self.left > 0 && self.trigger.as_ref().is_none_or(|file| file.exists())
        }
    }

    pub(super) static POINTS: LazyLock<Mutex<HashMap<String, Point>>> = LazyLock::new(|| {
        let text = std::env::var("PORTCULLIS_FAILPOINTS").unwrap_or_default();
        let points = text
            .split(';')
            .filter_map(|entry| entry.split_once('='))
            .map(|(name, action)| {
                let (action, trigger) = match action.split_once('@') {
                    Some((action, file)) => (action, Some(PathBuf::from(file.trim()))),
                    None => (action, None),
                };
                let (left, action) = match action.split_once('*') {
                    Some((n, action)) => (n.parse().unwrap_or(u64::MAX), action),
                    None => (u64::MAX, action),
                };
                (name.trim().to_owned(), Point { action: action.trim().to_owned(), left, trigger })
            })
            .collect();
        Mutex::new(points)
    });
}

/// What an armed point makes the code around it do.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(not(debug_assertions), expect(dead_code, reason = "nothing is armed in a release build"))]
enum Action {
    None,
    Delay(Duration),
    Error,
}

fn fire(name: &str) -> Action {
    #[cfg(not(debug_assertions))]
    {
        let _ = name;
        Action::None
    }
    #[cfg(debug_assertions)]
    {
        let action = {
            let mut points = portcullis_util::lock(&armed::POINTS);
            match points.get_mut(name) {
                Some(point) if point.is_due() => {
                    point.left -= 1;
                    point.action.clone()
                }
                _ => return Action::None,
            }
        };
        match action.as_str() {
            "exit" => std::process::exit(86),
            "panic" => panic!("fail point {name}"),
            "hang" => loop {
                std::thread::sleep(Duration::from_secs(3600));
            },
            "error" => Action::Error,
            wait if let Some(file) = argument(wait, "wait") => {
                while !std::path::Path::new(file).exists() {
                    std::thread::sleep(Duration::from_millis(10));
                }
                Action::None
            }
            delay => {
                let text = argument(delay, "delay").unwrap_or("0s");
                Action::Delay(humantime::parse_duration(text).unwrap_or_default())
            }
        }
    }
}

/// What stands in the parentheses of `<name>(<argument>)`; `None` for another action.
#[cfg(debug_assertions)]
fn argument<'a>(action: &'a str, name: &str) -> Option<&'a str> {
    action.strip_prefix(name)?.strip_prefix('(')?.strip_suffix(')')
}

/// Passes the point `name`. Returns true if the code around it should act as if it had failed.
pub fn hit(name: &str) -> bool {
    match fire(name) {
        Action::None => false,
        Action::Error => true,
        Action::Delay(time) => {
            std::thread::sleep(time);
            false
        }
    }
}

/// [`hit`] for one of many that pass a point, which `what` names: `evaluator.asking/cluster/a=panic`.
pub fn hit_of(name: &str, what: &impl std::fmt::Display) -> bool {
    cfg!(debug_assertions) && hit(&format!("{name}/{what}"))
}

/// [`hit`] for asynchronous code: a delay does not block the thread.
pub async fn hit_async(name: &str) -> bool {
    match fire(name) {
        Action::None => false,
        Action::Error => true,
        Action::Delay(time) => {
            tokio::time::sleep(time).await;
            false
        }
    }
}

//! Ends programs when the test itself is killed: a shell beside the test outlives it and kills them.

use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::{LazyLock, Mutex};

use crate::lock;

/// Remembers process groups (`+ID`, `-ID`), and kills those that are left when its input ends, which is when the test ends.
const SCRIPT: &str = r#"
groups=" "
while read -r line; do
    id=${line#?}
    case $line in
        +*) groups="$groups$id " ;;
        -*) groups="${groups%% "$id" *} ${groups#* "$id" }" ;;
    esac
done
for id in $groups; do kill -KILL "-$id" 2>/dev/null; done
"#;

/// Makes sure that this process group, led by a process of the same id, does not outlive the test.
pub(crate) fn watch(process: u32) {
    send('+', process);
}

/// Drops a process that has ended, as another may get its id.
pub(crate) fn forget(process: u32) {
    send('-', process);
}

fn send(what: char, process: u32) {
    static SHELL: LazyLock<Mutex<Child>> = LazyLock::new(|| {
        let mut shell = Command::new("sh");
        shell.args(["-c", SCRIPT]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        // A process group of its own, so that an interrupt in a terminal does not end it with the test.
        Mutex::new(shell.process_group(0).spawn().expect("there is a shell"))
    });
    let mut shell = lock(&SHELL);
    let pipe = shell.stdin.as_mut().expect("standard input is a pipe");
    // Without the shell, programs still end with the test, unless it is killed.
    let _ = writeln!(pipe, "{what}{process}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_killed_and_what_was_forgotten_is_not() {
        let sleep = || Command::new("sleep").arg("600").process_group(0).spawn().unwrap();
        let (mut left, mut ended) = (sleep(), sleep());
        let mut shell = Command::new("sh").args(["-c", SCRIPT]).stdin(Stdio::piped()).spawn().unwrap();
        let mut pipe = shell.stdin.take().unwrap();
        writeln!(pipe, "+{}\n+{}\n-{}", ended.id(), left.id(), ended.id()).unwrap();
        drop(pipe);
        shell.wait().unwrap();
        assert!(!left.wait().unwrap().success());
        assert!(ended.try_wait().unwrap().is_none());
        ended.kill().unwrap();
        ended.wait().unwrap();
    }
}

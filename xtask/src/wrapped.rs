//! Commands that are started by another command.

use std::process::Command;

/// A command that starts `inner`: `outer`, with the program of `inner` and its arguments after its own, in its folder and environment.
pub(crate) fn started_by(mut outer: Command, inner: &Command) -> Command {
    outer.arg(inner.get_program()).args(inner.get_args());
    if let Some(folder) = inner.get_current_dir() {
        outer.current_dir(folder);
    }
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => outer.env(name, value),
            None => outer.env_remove(name),
        };
    }
    outer
}

/// The same command with the lowest priority: it gets the processor when nothing else in this session wants it.
pub(crate) fn at_lowest_priority(command: &Command) -> Command {
    let mut nice = Command::new("nice");
    nice.args(["-n", "19"]);
    started_by(nice, command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_at_the_lowest_priority_is_otherwise_the_same() {
        let folder = std::env::temp_dir();
        let mut command = Command::new("sh");
        command.args(["-c", "pwd; nice; echo \"$1 $SET ${HOME-unset}\"", "sh", "an argument"]);
        command.current_dir(&folder).env("SET", "set").env_remove("HOME");
        let output = at_lowest_priority(&command).output().unwrap();
        let folder = folder.canonicalize().unwrap();
        let expected = format!("{}\n19\nan argument set unset\n", folder.display());
        assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
    }
}

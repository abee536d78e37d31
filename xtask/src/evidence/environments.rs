//! Where tests run, by their folders: on real parts or on stand-ins.

/// An environment of tests: the folders of its tests, the words beside each test, and what they mean.
struct Environment {
    folders: &'static [&'static str],
    words: &'static str,
    meaning: &'static str,
}

/// All environments, in the order of how much is real. Where folders lie within each other, the longest counts.
const ENVIRONMENTS: [Environment; 8] = [
    Environment {
        folders: &["controller", "crates", "evaluator", "loader", "reporter"],
        words: "functions",
        meaning: "parts of one program, called by the test itself",
    },
    Environment {
        folders: &["loader/tests", "reporter/tests"],
        words: "one program",
        meaning: "the real loader or the real reporter as a process; the test plays its neighbours, and there is no API server",
    },
    Environment {
        folders: &["tests/tests"],
        words: "programs",
        meaning: "the real programs of a pod as processes; no cluster",
    },
    Environment {
        folders: &["e2e/tests/chart", "e2e/tests/resources"],
        words: "API server",
        meaning: "a real API server with the chart's objects or definitions; no policy server runs",
    },
    Environment {
        folders: &["e2e/tests/status"],
        words: "API server, reporters",
        meaning: "a real API server and real reporters; the test plays loaders, evaluators and kubelets",
    },
    Environment {
        folders: &["e2e/tests/revisions"],
        words: "API server, pods",
        meaning: "a real API server, and real loaders and evaluators as processes; the test plays controller and kubelets",
    },
    Environment {
        folders: &["e2e/tests/certificates", "e2e/tests/promises", "e2e/tests/webhooks"],
        words: "API server, programs",
        meaning: "a real API server and the real programs as processes; the test plays kubelets",
    },
    Environment {
        folders: &["e2e/tests/chart_promises"],
        words: "node",
        meaning: "the chart on a real node, with kubelet, containers, probes and services",
    },
];

/// Where the tests of a file run; `None` if no environment has its folder.
pub(crate) fn of(file: &str) -> Option<&'static str> {
    let length = |environment: &Environment| {
        let is_in = |folder: &&&str| file.strip_prefix(**folder).is_some_and(|rest| rest.starts_with('/'));
        environment.folders.iter().filter(is_in).map(|folder| folder.len()).max()
    };
    let found = ENVIRONMENTS.iter().filter_map(|environment| Some((length(environment)?, environment.words)));
    found.max_by_key(|(length, _)| *length).map(|(_, words)| words)
}

/// The legend: a list of all environments.
pub(crate) fn legend() -> String {
    let folders = |environment: &Environment| {
        environment.folders.iter().map(|folder| format!("`{folder}`")).collect::<Vec<_>>().join(", ")
    };
    let line = |environment: &Environment| {
        format!("- **{}**: {} ({})\n", environment.words, environment.meaning, folders(environment))
    };
    ENVIRONMENTS.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_folder_counts() {
        assert_eq!(of("loader/src/compile.rs"), Some("functions"));
        assert_eq!(of("loader/tests/integration-tests/web.rs"), Some("one program"));
        assert_eq!(of("e2e/tests/chart/names.rs"), Some("API server"));
        assert_eq!(of("e2e/tests/chart_promises/swap.rs"), Some("node"));
        assert_eq!(of("bench/src/main.rs"), None);
    }

    #[test]
    fn each_environment_is_in_the_legend() {
        assert_eq!(legend().lines().count(), ENVIRONMENTS.len());
        assert!(legend().contains("- **node**: the chart on a real node"));
    }
}

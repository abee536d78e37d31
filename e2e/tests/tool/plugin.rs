//! `kubectl portcullis`, run by the real kubectl.

use std::env;
use std::fs;
use std::os::unix::fs::symlink;

use portcullis_e2e::{Cache, Kubernetes, Program, Running};

use crate::scene::Scene;
use crate::{cluster, install, portcullis, run};

#[test]
#[ignore = "starts a cluster"]
fn kubectl_portcullis_is_the_same_program() {
    let installation = install("plugin");
    let scene = Scene::new(&installation, "a");
    let links = cluster().folder().join("links");
    fs::create_dir_all(&links).unwrap();
    for name in ["kubectl-portcullis", "kubectl_complete-portcullis"] {
        symlink(Program::Cli.path(), links.join(name)).unwrap();
    }
    let path = env::join_paths([links].into_iter().chain(env::split_paths(&env::var_os("PATH").unwrap_or_default())));
    let path = path.unwrap();

    let cache = Cache::from_env().unwrap();
    let kubernetes = Kubernetes::build(&cache, &|_| ()).unwrap();
    let all = Running::list(&cache).unwrap();
    let running = all.iter().find(|one| one.kubeconfig == cluster().kubeconfig()).unwrap();
    // The second that a user waits for names may be too short on a busy machine.
    let patience = ("PORTCULLIS_COMPLETION_TIMEOUT", "1m");
    let kubectl = |words: &[&str]| {
        let mut command = running.kubectl(&kubernetes);
        run(command.env("PATH", &path).env("KUBERC", "off").env(patience.0, patience.1).args(words))
    };

    let namespace = scene.namespace.as_str();
    let words = ["history", "labels", "-n", namespace, "-o", "name"];
    let plugin = kubectl(&[&["portcullis"], &words[..]].concat());
    assert_eq!(plugin.expect("the plugin"), "4\n3\n2\n1");
    assert_eq!(plugin, portcullis(&cluster().kubeconfig(), &words));

    let commands = kubectl(&["__complete", "portcullis", "hist"]);
    // With a description behind a tab, which kubectl shows beside the name.
    assert!(commands.stdout.starts_with("history\tList the newest"), "{}{}", commands.stdout, commands.stderr);
    let policies = kubectl(&["__complete", "portcullis", "describe", "-n", namespace, "namespaced/"]);
    let id = format!("namespaced/{namespace}/labels");
    let mut names = policies.stdout.lines().filter_map(|line| line.split('\t').next());
    assert!(names.any(|name| name == id), "{}{}", policies.stdout, policies.stderr);
}

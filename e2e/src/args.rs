//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};
use portcullis_e2e::{MAX_API_SERVERS, Name};

/// Real Kubernetes on this machine: control planes, with or without a node.
///
/// The first `up` builds Kubernetes, which takes some minutes; it is kept in the cache folder, which is PORTCULLIS_CACHE, or
/// portcullis/ below XDG_CACHE_HOME or ~/.cache. Needs Go to build, and root for API servers with addresses that can be published.
#[derive(Parser)]
#[command(name = "cluster", bin_name = "cargo xtask cluster")]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Start a cluster that stays until `down`, and print how to use it.
    #[command(after_help = "Examples:\n  cargo xtask cluster up\n  cargo xtask cluster up --node\n  \
                      cargo xtask cluster up --name two --apiservers 2")]
    Up {
        #[command(flatten)]
        named: Named,
        /// The number of API servers, on one etcd; more than one needs root.
        #[arg(long = "apiservers", value_name = "N", default_value_t = 1,
              value_parser = clap::value_parser!(u8).range(1..=i64::from(MAX_API_SERVERS)))]
        api_servers: u8,
        /// With a node that runs pods. Needs root, containerd, runc, CNI plugins and nftables, which are installed on Debian.
        #[arg(long)]
        node: bool,
        #[command(flatten)]
        output: Output,
    },
    /// Stop a cluster and remove everything it left, even after a crash.
    Down {
        #[command(flatten)]
        named: Named,
        /// All clusters, including those of tests that are running.
        #[arg(long, conflicts_with = "name")]
        all: bool,
        /// Only the remains of clusters whose owner has ended.
        #[arg(long, conflicts_with_all = ["name", "all"])]
        abandoned: bool,
        #[command(flatten)]
        output: Output,
    },
    /// Show the clusters, including those of tests.
    Status {
        #[command(flatten)]
        output: Output,
    },
    /// Start a cluster with Portcullis in it, stay until Ctrl-C, and leave nothing behind.
    ///
    /// Its programs run as processes of this machine, and nothing runs the pods that you create; with --node the chart is installed with
    /// Helm on a node that runs pods.
    #[command(after_help = "Examples:\n  cargo xtask cluster run --replicas 1\n  cargo xtask cluster run --node")]
    Run {
        #[command(flatten)]
        named: Named,
        /// The number of replicas of the policy server.
        #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=20))]
        replicas: u8,
        /// With a node, and images made by `cargo xtask images --debug`. Needs what `up --node` needs.
        #[arg(long)]
        node: bool,
    },
    /// Run kubectl as an administrator of a cluster.
    #[command(after_help = "Examples:\n  cargo xtask cluster kubectl -- get namespaces\n  \
                      cargo xtask cluster kubectl --name two -- --context api-server-2 get --raw /readyz")]
    Kubectl {
        #[command(flatten)]
        named: Named,
        /// Arguments for kubectl.
        #[arg(last = true)]
        args: Vec<OsString>,
    },
    /// Run helm as an administrator of a cluster.
    #[command(
        after_help = "Example:\n  cargo xtask cluster helm -- install portcullis helm --namespace portcullis --create-namespace"
    )]
    Helm {
        #[command(flatten)]
        named: Named,
        /// Arguments for helm.
        #[arg(last = true)]
        args: Vec<OsString>,
    },
    /// Put images on the node of a cluster, from archives as `cargo xtask images` and `docker save` write them.
    #[command(after_help = "Example:\n  cargo xtask cluster import target/images/*.tar")]
    Import {
        #[command(flatten)]
        named: Named,
        /// The archives.
        #[arg(required = true, value_name = "FILE")]
        archives: Vec<PathBuf>,
    },
    /// Build chart and images of an earlier release from the history of the repository, if they are not in the cache, and print where
    /// they are.
    #[command(name = "earlier-release")]
    EarlierRelease,
    /// Build Kubernetes and Helm, if they are not in the cache, and print where they are. Downloads the definitions of reports too.
    Build {
        /// Build nothing, and fail if they are not in the cache.
        #[arg(long)]
        check: bool,
    },
}

/// One of the clusters.
#[derive(clap::Args)]
pub(crate) struct Named {
    /// The name of the cluster.
    #[arg(long, env = "PORTCULLIS_CLUSTER_NAME", default_value = "default")]
    pub(crate) name: Name,
}

/// The form of the output.
#[derive(clap::Args)]
pub(crate) struct Output {
    /// The form of the output.
    #[arg(long, short, value_enum, default_value_t = Form::Text)]
    pub(crate) output: Form,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Form {
    /// Text for people.
    Text,
    /// JSON for programs.
    Json,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_commands_are_well_formed() {
        Args::command().debug_assert();
    }

    #[test]
    fn all_and_a_name_are_not_both_given() {
        assert!(Args::try_parse_from(["cluster", "down", "--all"]).is_ok());
        assert!(Args::try_parse_from(["cluster", "down", "--all", "--name", "two"]).is_err());
    }

    #[test]
    fn a_cluster_has_at_least_one_api_server() {
        assert!(Args::try_parse_from(["cluster", "up", "--apiservers", "0"]).is_err());
        assert!(Args::try_parse_from(["cluster", "up", "--apiservers", "2"]).is_ok());
    }
}

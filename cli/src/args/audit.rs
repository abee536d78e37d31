//! Arguments of `portcullis audit`.

use std::time::Duration;

use super::{ResultForm, ScopeArgs};

/// The arguments of `portcullis audit`.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "Examples:\n  \
    portcullis audit                                   # how many objects do policies reject?\n  \
    portcullis audit no-privileged                     # which ones, and why?\n  \
    portcullis audit no-privileged --now --wait        # look again first\n  \
    portcullis audit -A -o json")]
// It works with a cluster only.
#[command(mut_arg("dir", |dir| dir.hide(true)))]
pub struct AuditArgs {
    /// Which policies, and where they are.
    #[command(flatten)]
    pub scope: ScopeArgs,

    /// Ask for a scan as soon as the rest after the last one is over, by an annotation of the policy. This needs the right to patch it.
    #[arg(long, requires = "policy")]
    pub now: bool,

    /// Wait until that scan has ended, and show what it found.
    #[arg(long, requires = "now")]
    pub wait: bool,

    /// Longest time to wait.
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = portcullis_process::parse_duration)]
    pub timeout: Duration,

    /// How many objects are shown that the policy rejects or could not be asked about.
    #[arg(long, value_name = "NUMBER", default_value = "100")]
    pub show: usize,

    /// The form of the output.
    #[arg(long, short, value_enum, default_value = "text")]
    pub output: ResultForm,
}

//! Arguments of `portcullis test`.

use std::path::PathBuf;

use clap::ValueEnum;

use super::{ModuleArgs, RecordArgs};

/// The arguments of `portcullis test`.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "A test, in a folder beside that of the policies:\n\n  \
    apiVersion: test.portcullis.dev/v1alpha1\n  \
    kind: PolicyTest\n  \
    policy: ../policies/no-privileged.yaml\n  \
    cases:\n  \
    - name: an ordinary pod\n    \
      request: ../requests/pod-ok.json     # an AdmissionReview, its request, or an object that is created\n    \
      expect: {allowed: true}\n  \
    - name: a privileged one\n    \
      request: ../requests/pod-privileged.json\n    \
      expect: {allowed: false, message: privileged containers are not allowed}\n\n\
Examples:\n  \
    portcullis test examples/tests\n  \
    portcullis test tests/ --run labels\n  \
    portcullis test tests/ -o junit > tests.xml")]
pub struct TestArgs {
    /// Files, and folders with YAML and JSON files, which are searched with all folders in them. In folders, files that do not name
    /// test.portcullis.dev are left alone.
    #[arg(value_name = "FILE|DIR", required = true)]
    pub paths: Vec<PathBuf>,

    /// Only cases with this text in `TEST: CASE`.
    #[arg(long, value_name = "TEXT")]
    pub run: Option<String>,

    /// The form of the output.
    #[arg(long, short, value_enum, default_value = "text")]
    pub output: TestForm,

    /// What the policies ask their host for.
    #[command(flatten)]
    pub recording: RecordArgs,

    /// Where modules come from, and what loading one may take.
    #[command(flatten)]
    pub modules: ModuleArgs,
}

/// The form of the results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TestForm {
    /// For people: a line for each case, `FILE:LINE: TEST: CASE: …`.
    Text,
    /// One JSON object.
    Json,
    /// JUnit's XML.
    Junit,
}

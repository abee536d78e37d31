//! Lines for the user while the reporter draws on the same terminal. They go through the reporter, so that its table stays whole.

use std::sync::Arc;

use tokio::io::AsyncWriteExt as _;
use tokio::process::ChildStdin;
use tokio::sync::Mutex;

/// Prints lines that stay on the terminal.
#[derive(Debug, Clone, Default)]
pub(super) struct Console(Arc<Mutex<Option<ChildStdin>>>);

impl Console {
    /// From now on lines go to this input of the reporter, or to standard output.
    pub(super) async fn through(&self, input: Option<ChildStdin>) {
        *self.0.lock().await = input;
    }

    /// Prints a line.
    pub(super) async fn print(&self, line: &str) {
        let mut input = self.0.lock().await;
        if let Some(reporter) = input.as_mut() {
            let text = format!("{line}\n");
            let written = reporter.write_all(text.as_bytes()).await;
            if written.is_ok() && reporter.flush().await.is_ok() {
                return;
            }
            *input = None;
        }
        println!("{line}");
    }
}

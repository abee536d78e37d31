//! Starts a program again when it ends by itself. The other programs go on meanwhile.

use std::time::{Duration, Instant};

use portcullis_util::Backoff;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::console::Console;
use crate::child::{ChildSpec, Running, quoted};

/// The pauses before a program is started again.
const PAUSES: Backoff = Backoff { shortest: Duration::from_millis(200), longest: Duration::from_secs(10) };
/// A program that ran for this long begins with the first pause again.
const STEADY: Duration = Duration::from_secs(60);

/// A program that is kept running.
pub(super) struct Supervised {
    stop: oneshot::Sender<Duration>,
    task: JoinHandle<()>,
}

impl Supervised {
    /// Keeps a program running: when `running` has ended, it is started again by `spec`.
    pub(super) fn new(spec: ChildSpec, running: Running, console: Console) -> Self {
        let (stop, stopped) = oneshot::channel();
        Self { stop, task: tokio::spawn(keep(spec, running, console, stopped)) }
    }

    /// Ends the program: asks it to end, waits, and kills it after `patience`.
    pub(super) async fn stop(self, patience: Duration) {
        // The task has ended already only if it panicked, and then its child is gone too.
        let _ = self.stop.send(patience);
        let _ = self.task.await;
    }
}

async fn keep(spec: ChildSpec, mut running: Running, console: Console, mut stopped: oneshot::Receiver<Duration>) {
    let program = spec.program;
    let mut starts = 1_u32;
    loop {
        let since = Instant::now();
        let (status, tail) = tokio::select! {
            ended = running.ended() => ended,
            patience = &mut stopped => return running.stop(patience.unwrap_or_default()).await,
        };
        if spec.speaks {
            console.through(None).await;
        }
        if since.elapsed() >= STEADY {
            starts = 1;
        }
        let log = spec.log.as_ref().map(|log| format!(" (log: {})", log.display())).unwrap_or_default();
        console.print(&format!("The {program} ended: {status}; it is started again{log}{}", quoted(&tail))).await;
        running = loop {
            let restart = async {
                tokio::time::sleep(PAUSES.bound(starts)).await;
                Running::start(&spec).await
            };
            let result = tokio::select! {
                result = restart => result,
                _ = &mut stopped => return,
            };
            starts = starts.saturating_add(1);
            match result {
                Ok(running) => break running,
                Err(error) => {
                    let pause = PAUSES.bound(starts).as_millis();
                    console.print(&format!("{error}\nIt is tried again in {pause} ms.")).await;
                }
            }
        };
        if spec.speaks {
            console.through(running.input.take()).await;
        }
        console.print(&format!("The {program} runs again.")).await;
    }
}

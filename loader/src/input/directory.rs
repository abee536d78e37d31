//! Watching a folder: events where the system has them, and a poll behind them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use notify::event::{AccessKind, AccessMode};
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use portcullis_process::{Beat, Shutdown, supervised};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::scan::{Directory, Scanner};
use super::{Desired, Snapshot};

/// How long a folder must be quiet before it is read.
const QUIET: Duration = Duration::from_millis(50);
/// Longest time that reading is put off while the folder is not quiet.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often the folder is read without any event.
const POLL: Duration = Duration::from_secs(2);

/// Follows a folder until the shutdown. `beat` is renewed at least at every poll.
///
/// After a panic the loop starts again and reads everything again.
pub(crate) fn watch_directory(directory: Directory, roots: Vec<PathBuf>, beat: Beat, shutdown: &Shutdown) -> Desired {
    let (sender, receiver) = watch::channel(None);
    let token = shutdown.clone();
    let sender = Arc::new(sender);
    supervised("input", shutdown, move || {
        follow(directory.clone(), roots.clone(), beat.clone(), Arc::clone(&sender), token.clone())
    });
    receiver
}

async fn follow(
    directory: Directory,
    roots: Vec<PathBuf>,
    beat: Beat,
    sender: Arc<watch::Sender<Option<Arc<Snapshot>>>>,
    shutdown: Shutdown,
) {
    let (wake, mut events) = mpsc::channel(1);
    let mut watcher = Watched::new(wake);
    let mut scanner = Scanner::default();
    let mut seen = None;
    loop {
        beat.now();
        watcher.watch(directory.folder());
        let scan = {
            let (directory, roots) = (directory.clone(), roots.clone());
            tokio::task::spawn_blocking(move || {
                let snapshot = scanner.scan(&directory, &roots);
                (scanner, snapshot)
            })
        };
        let Ok((returned, snapshot)) = scan.await else { return };
        scanner = returned;
        match snapshot {
            Ok(snapshot) => {
                watcher.keep(directory.folder(), &snapshot, &roots);
                let sees = Some(scanner.seen(&snapshot));
                if sees != seen {
                    seen = sees;
                    sender.send_replace(Some(Arc::new(snapshot)));
                }
            }
            Err(error) => {
                seen = None;
                let text = portcullis_contract::clean(&error.to_string(), 500);
                sender.send_modify(|last| {
                    // The last snapshot stays in force: a folder that is missing for a moment is not an empty one.
                    if let Some(last) = last {
                        let mut snapshot = Snapshot::clone(last);
                        snapshot.problems.retain(|(file, _)| file != ".");
                        snapshot.problems.push((".".to_owned(), text));
                        *last = Arc::new(snapshot);
                    } else {
                        tracing::warn!(problem = text, "waiting for the folder of policies");
                    }
                });
            }
        }
        tokio::select! {
            () = shutdown.begun() => return,
            event = timeout(POLL, events.recv()) => {
                if event.is_ok() {
                    settle(&mut events).await;
                }
            }
        }
    }
}

/// Waits until the folder has been quiet for a moment.
async fn settle(events: &mut mpsc::Receiver<()>) {
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        if timeout_at(end.min(Instant::now() + QUIET), events.recv()).await.is_err() {
            return;
        }
    }
    sleep(Duration::from_millis(1)).await;
}

/// A watcher of folders, if the system has one.
struct Watched {
    watcher: Option<RecommendedWatcher>,
    /// Device and inode of the main folder, so that a folder which replaces it is watched again.
    main: Option<(u64, u64)>,
    folders: BTreeSet<PathBuf>,
}

impl Watched {
    fn new(wake: mpsc::Sender<()>) -> Self {
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            let reading = |event: &notify::Event| match event.kind {
                EventKind::Access(AccessKind::Close(AccessMode::Write)) => false,
                EventKind::Access(_) => true,
                _ => false,
            };
            // An error may mean that events were lost: look again. A full channel already holds a wake-up.
            if !event.is_ok_and(|event| reading(&event)) {
                let _ = wake.try_send(());
            }
        });
        let watcher = watcher
            .inspect_err(|error| tracing::warn!(%error, "the folder cannot be watched; it is read every {POLL:?}"))
            .ok();
        Self { watcher, main: None, folders: BTreeSet::new() }
    }

    /// Watches the main folder, again if another has taken its place.
    fn watch(&mut self, folder: &Path) {
        use std::os::unix::fs::MetadataExt as _;
        let now = std::fs::metadata(folder).ok().map(|metadata| (metadata.dev(), metadata.ino()));
        let Some(watcher) = self.watcher.as_mut() else { return };
        if now != self.main {
            let _ = watcher.unwatch(folder);
            let watched = now.is_some() && watcher.watch(folder, RecursiveMode::NonRecursive).is_ok();
            self.main = now.filter(|_| watched);
        }
    }

    /// Watches the folders of the modules that the snapshot names, and no others.
    fn keep(&mut self, main: &Path, snapshot: &Snapshot, roots: &[PathBuf]) {
        let Some(watcher) = self.watcher.as_mut() else { return };
        let parents = snapshot.stamps.keys().filter_map(|path| path.parent());
        let below_roots = |folder: &&Path| {
            let real = folder.canonicalize();
            roots.iter().any(|root| real.as_ref().is_ok_and(|real| real.starts_with(root)))
        };
        let wanted: BTreeSet<PathBuf> =
            parents.filter(below_roots).filter(|folder| *folder != main).map(Path::to_owned).collect();
        for gone in self.folders.difference(&wanted) {
            // The folder may be gone already.
            let _ = watcher.unwatch(gone);
        }
        // A folder that cannot be watched is covered by the poll, and tried again at the next scan.
        self.folders = wanted
            .into_iter()
            .filter(|folder| {
                self.folders.contains(folder) || watcher.watch(folder, RecursiveMode::NonRecursive).is_ok()
            })
            .collect();
    }
}

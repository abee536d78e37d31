//! Notices that the manifest changed, and reads it.
//!
//! It does so on a thread of its own, since reading files of a volume may block for any time. Events only wake the thread: what counts is
//! the content, which it also checks from time to time, for volumes that send no events.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use notify::event::{AccessKind, AccessMode};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use portcullis_contract::{Digest, MANIFEST_FILE, MANIFEST_MAX_BYTES, Manifest, ManifestError};
use portcullis_process::{failpoint, files};
use portcullis_util::{LogOnce, lock};
use prometheus::IntGauge;
use tokio::sync::Notify;

use crate::volume::plan::Key;

/// How often the content is checked while there are no events.
const WITHOUT_EVENTS: Duration = Duration::from_secs(1);

/// The content of the volume.
#[derive(Debug)]
pub(crate) enum Content {
    /// A manifest.
    Manifest(KeyedManifest),
    /// The file is not a manifest or cannot be read; the text says why.
    Unusable(String),
}

/// A manifest with what takes time to make of it: it may have megabytes of settings, and the threads that apply it answer requests too.
#[derive(Debug)]
pub(crate) struct KeyedManifest {
    /// The manifest.
    pub(crate) manifest: Manifest,
    /// The keys of the candidates of each policy, in the order of the manifest.
    pub(crate) keys: Vec<Vec<Key>>,
}

/// The newest content. The thread ends at its next check after this is dropped.
pub(crate) struct Watch(Arc<Newest>);

/// Content that nobody has taken yet. It is handed over and not kept, since a manifest with its settings may be large.
#[derive(Debug, Default)]
struct Newest {
    content: Mutex<Option<Content>>,
    changed: Notify,
}

/// Why the thread wakes up.
#[derive(Debug, Clone, Copy)]
struct Wake;

impl Watch {
    /// Watches the folder `volume`, and checks its content every `poll_interval` at least. `polling` is 1 while there are no events.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub(crate) fn start(volume: PathBuf, poll_interval: Duration, polling: IntGauge) -> io::Result<Self> {
        let newest = Arc::new(Newest::default());
        let (wake, woken) = sync_channel(1);
        let watcher = Volume { path: volume, wake, armed: None, polling, log: LogOnce::default() };
        let receiver = Arc::downgrade(&newest);
        std::thread::Builder::new()
            .name("volume".into())
            .spawn(move || watcher.run(&woken, poll_interval, &receiver))?;
        Ok(Self(newest))
    }

    /// Waits for new content. If the thread has ended, this waits for ever, and what is loaded goes on serving.
    pub(crate) async fn changed(&mut self) -> Content {
        loop {
            if let Some(content) = lock(&self.0.content).take() {
                return content;
            }
            self.0.changed.notified().await;
        }
    }
}

impl KeyedManifest {
    fn decode(bytes: &[u8]) -> Result<Self, ManifestError> {
        let manifest = Manifest::decode(bytes)?;
        let keys = manifest.policies.iter().map(|entry| {
            let of_candidates = entry.candidates.iter().map(|candidate| Key::of(&entry.uid, candidate));
            of_candidates.collect()
        });
        Ok(Self { keys: keys.collect(), manifest })
    }
}

/// The state of the thread.
struct Volume {
    path: PathBuf,
    wake: SyncSender<Wake>,
    armed: Option<Armed>,
    polling: IntGauge,
    log: LogOnce,
}

/// A watch on one folder, which need not be the one that has the path now.
struct Armed {
    folder: (u64, u64),
    _watcher: RecommendedWatcher,
}

impl Volume {
    fn run(mut self, woken: &Receiver<Wake>, poll_interval: Duration, receiver: &Weak<Newest>) {
        let mut last = LastContent::default();
        // Without a receiver nobody needs the content.
        while receiver.strong_count() > 0 {
            // First the watch, then the check: a change in between sends an event.
            let wait = if self.arm() { poll_interval } else { poll_interval.min(WITHOUT_EVENTS) };
            if let (Some(content), Some(newest)) = (last.changed_in(&self.path), receiver.upgrade()) {
                *lock(&newest.content) = Some(content);
                newest.changed.notify_one();
            }
            // The sender is in `self`, so this ends only with an event or after the time.
            let _ = woken.recv_timeout(wait);
        }
    }

    /// Makes sure that the folder which has the path now is watched. False if it cannot be.
    fn arm(&mut self) -> bool {
        let folder = fs::metadata(&self.path).map(|metadata| (metadata.dev(), metadata.ino())).ok();
        if self.armed.as_ref().map(|armed| armed.folder) != folder || folder.is_none() {
            self.armed = None;
        }
        if let (None, Some(folder)) = (&self.armed, folder) {
            match self.watcher() {
                Ok(watcher) => self.armed = Some(Armed { folder, _watcher: watcher }),
                Err(error) if self.log.fails("", Instant::now()) => {
                    tracing::warn!(%error, volume = %self.path.display(), "the volume cannot be watched; polling it");
                }
                Err(_) => {}
            }
        }
        self.polling.set(i64::from(self.armed.is_none()));
        if self.armed.is_some() && self.log.works() {
            tracing::info!(volume = %self.path.display(), "the volume is watched again");
        }
        self.armed.is_some()
    }

    fn watcher(&self) -> notify::Result<RecommendedWatcher> {
        let (wake, volume) = (self.wake.clone(), self.path.clone());
        let mut watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
            let matters = event.map_or(true, |event| matters(&event, &volume));
            if matters && !failpoint::hit("evaluator.drop_events") {
                // If the channel is full, the thread is about to check anyway.
                let _ = wake.try_send(Wake);
            }
        })?;
        watcher.watch(&self.path, RecursiveMode::NonRecursive)?;
        Ok(watcher)
    }
}

/// Whether an event may mean another manifest. Reading the manifest is an event as well, and must not lead to reading it again.
fn matters(event: &Event, volume: &Path) -> bool {
    match event.kind {
        EventKind::Access(AccessKind::Close(AccessMode::Write)) => {}
        EventKind::Access(_) => return false,
        _ => {}
    }
    let is_manifest = |path: &Path| path == volume || path.file_name().is_some_and(|name| name == MANIFEST_FILE);
    event.need_rescan() || event.paths.is_empty() || event.paths.iter().any(|path| is_manifest(path))
}

/// The content at the last check.
#[derive(Default)]
enum LastContent {
    #[default]
    Nothing,
    Content(Digest),
    Problem(String),
}

impl LastContent {
    /// The content now, if it is different.
    fn changed_in(&mut self, volume: &Path) -> Option<Content> {
        let bytes = match files::read_regular(&volume.join(MANIFEST_FILE), MANIFEST_MAX_BYTES) {
            Ok(bytes) => bytes,
            Err(error) if error.source.kind() == io::ErrorKind::NotFound => {
                return match self {
                    Self::Nothing => None,
                    _ => self.problem(format!("{MANIFEST_FILE} is no longer on the volume")),
                };
            }
            Err(error) => return self.problem(error.to_string()),
        };
        let digest = Digest::of(&bytes);
        if matches!(self, Self::Content(last) if *last == digest) {
            return None;
        }
        *self = Self::Content(digest);
        Some(match KeyedManifest::decode(&bytes) {
            Ok(manifest) => Content::Manifest(manifest),
            Err(error) => Content::Unusable(error.to_string()),
        })
    }

    fn problem(&mut self, text: String) -> Option<Content> {
        if matches!(self, Self::Problem(last) if *last == text) {
            return None;
        }
        *self = Self::Problem(text.clone());
        Some(Content::Unusable(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(number: u64) -> Vec<u8> {
        Manifest { number, policies: Vec::new(), groups: Vec::new() }.encode().expect("encodes")
    }

    fn number(seen: Option<Content>) -> Option<u64> {
        match seen {
            Some(Content::Manifest(seen)) => Some(seen.manifest.number),
            Some(Content::Unusable(_)) => Some(0),
            None => None,
        }
    }

    #[test]
    fn only_changes_of_the_content_count() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(MANIFEST_FILE);
        let mut last = LastContent::default();
        assert_eq!(number(last.changed_in(folder.path())), None);
        for (content, expected) in [
            (Some(manifest(1)), Some(1)),
            (Some(manifest(1)), None),
            (Some(manifest(2)), Some(2)),
            (Some(b"torn".to_vec()), Some(0)),
            (Some(b"torn".to_vec()), None),
            (Some(manifest(2)), Some(2)),
            (None, Some(0)),
            (None, None),
            (Some(manifest(2)), Some(2)),
        ] {
            match content {
                Some(bytes) => files::publish(&path, &bytes).expect("writes"),
                None => drop(fs::remove_file(&path)),
            }
            assert_eq!(number(last.changed_in(folder.path())), expected);
        }
    }

    #[test]
    fn reading_the_manifest_does_not_lead_to_reading_it() {
        let volume = Path::new("/volume");
        let event = |kind, path: &str| Event::new(kind).add_path(volume.join(path));
        let opened = EventKind::Access(AccessKind::Open(AccessMode::Read));
        let written = EventKind::Access(AccessKind::Close(AccessMode::Write));
        assert!(!matters(&event(opened, MANIFEST_FILE), volume));
        assert!(matters(&event(written, MANIFEST_FILE), volume));
        assert!(!matters(&event(EventKind::Any, ".manifest.json.7.tmp"), volume));
        assert!(matters(&Event::new(EventKind::Any).add_path(volume.to_owned()), volume));
        assert!(matters(&Event::new(EventKind::Other).set_flag(notify::event::Flag::Rescan), volume));
    }

    async fn next(watch: &mut Watch) -> Option<u64> {
        number(tokio::time::timeout(Duration::from_secs(60), watch.changed()).await.ok())
    }

    #[tokio::test]
    async fn a_folder_that_is_replaced_is_watched_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let link = folder.path().join("volume");
        for name in ["a", "b"] {
            fs::create_dir(folder.path().join(name)).expect("a folder");
        }
        std::os::unix::fs::symlink(folder.path().join("a"), &link).expect("links");
        let polling = IntGauge::new("x", "x").expect("a gauge");
        let mut watch = Watch::start(link.clone(), Duration::from_millis(50), polling.clone()).expect("starts");
        files::publish(&link.join(MANIFEST_FILE), &manifest(1)).expect("writes");
        assert_eq!(next(&mut watch).await, Some(1));
        fs::remove_file(&link).expect("removes");
        std::os::unix::fs::symlink(folder.path().join("b"), &link).expect("links");
        assert_eq!(next(&mut watch).await, Some(0));
        files::publish(&link.join(MANIFEST_FILE), &manifest(2)).expect("writes");
        assert_eq!(next(&mut watch).await, Some(2));
        assert_eq!(polling.get(), 0);
    }

    #[tokio::test]
    async fn events_are_faster_than_the_poll() {
        let folder = tempfile::tempdir().expect("a folder");
        let polling = IntGauge::new("x", "x").expect("a gauge");
        let mut watch = Watch::start(folder.path().to_owned(), Duration::from_secs(3600), polling).expect("starts");
        tokio::time::sleep(Duration::from_millis(100)).await;
        for n in 1..=3 {
            files::publish(&folder.path().join(MANIFEST_FILE), &manifest(n)).expect("writes");
            assert_eq!(next(&mut watch).await, Some(n));
        }
    }
}

use kube::core::{ApiResource, GroupVersionKind};
use kube::{Client, Config};
use portcullis_contract::ContextReason;
use serde_json::{Value, json};

use super::super::mask;
use super::super::objects::{length_of, size};
use super::*;
use crate::grants::tests::manifest;

fn resource() -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "Pod"))
}

fn pods() -> ContextAwareResource {
    ContextAwareResource { api_version: "v1".to_owned(), kind: "Pod".to_owned() }
}

fn shape() -> Shape {
    Shape { resource: resource(), selection: mask::kept(&[]), metadata_only: false }
}

fn pod(name: &str, text: &str) -> ObjectText {
    serde_json::from_value(json!({"metadata": {"name": name, "namespace": "n"}, "spec": {"text": text}}))
        .expect("a pod")
}

fn watched() -> Watched {
    Watched {
        discovered: Discovered { resource: resource(), is_namespaced: true },
        objects: Mutex::default(),
        state: tokio::sync::watch::Sender::new(State::Incomplete(None)),
        outage: Mutex::default(),
        used: Mutex::new(Instant::now()),
        task: Mutex::default(),
        bytes: Arc::default(),
        asked_by: OnceLock::new(),
        is_needed: AtomicBool::new(false),
        is_probe: false,
    }
}

fn watches(published: Arc<PublishedGrants>) -> Watches {
    Watches::new(published, Metrics::new(&prometheus::Registry::new()).expect("registers"))
}

fn forget_list(watched: &Arc<Watched>) {
    watched.change(&mut lock(&watched.objects), Objects::forget_list);
}

fn take(watched: &Watched, event: Event<ObjectText>) -> Result<(), CollectionError> {
    watched.take(event, &shape()).map(drop)
}

fn names(watched: &Watched) -> Vec<String> {
    let list = watched.render(&pods()).expect("a list");
    let list: Value = serde_json::from_slice(&list).expect("JSON");
    assert_eq!((&list["kind"], &list["apiVersion"]), (&json!("PodList"), &json!("v1")));
    let items = list["items"].as_array().expect("items");
    items.iter().map(|item| item["metadata"]["name"].as_str().expect("a name").to_owned()).collect()
}

#[test]
fn a_list_is_there_once_all_of_it_is_and_follows_what_changes() {
    let watched = watched();
    take(&watched, Event::Init).expect("room");
    for name in ["b", "a"] {
        take(&watched, Event::InitApply(pod(name, "x"))).expect("room");
    }
    assert_eq!(*watched.state.borrow(), State::Incomplete(None));
    take(&watched, Event::InitDone).expect("room");
    assert_eq!((&*watched.state.borrow(), names(&watched)), (&State::Complete, vec!["a".to_owned(), "b".to_owned()]));
    take(&watched, Event::Apply(pod("c", "y"))).expect("room");
    take(&watched, Event::Delete(pod("a", "x"))).expect("room");
    assert_eq!(names(&watched), ["b", "c"]);
    // A new list replaces the old one only when it is complete.
    take(&watched, Event::Init).expect("room");
    take(&watched, Event::InitApply(pod("d", "z"))).expect("room");
    assert_eq!(names(&watched), ["b", "c"]);
    take(&watched, Event::InitDone).expect("room");
    assert_eq!(names(&watched), ["d"]);
    let list = length_of(&watched.render(&pods()).expect("a list"));
    let kept = lock(&watched.objects).current.iter().map(size).sum::<u64>() + list;
    assert_eq!((lock(&watched.objects).bytes, watched.bytes.load(Ordering::Relaxed)), (kept, kept));
    watched.end();
    assert_eq!(watched.bytes.load(Ordering::Relaxed), 0);
    let ended = Err(CollectionError::Ended);
    assert_eq!((watched.render(&pods()), watched.version().map(drop)), (ended.clone(), ended.map(drop)));
}

#[test]
fn a_probe_says_that_objects_can_be_watched_and_keeps_none() {
    let probe = Watched { is_probe: true, ..watched() };
    for event in [Event::Init, Event::InitApply(pod("a", "x")), Event::InitDone, Event::Apply(pod("b", "x"))] {
        take(&probe, event).expect("room");
    }
    assert_eq!(*probe.state.borrow(), State::Complete);
    assert_eq!((lock(&probe.objects).bytes, probe.bytes.load(Ordering::Relaxed)), (0, 0));
}

#[test]
fn what_failed_is_known_to_those_who_wait() {
    let watched = watched();
    let refused = |code| CallError::Refused { code, retry_after: None, message: "no".to_owned() };
    watched.call_failed(&refused(403));
    let failed = Failed { reason: ContextReason::ContextForbidden, why: refused(403).to_string() };
    assert_eq!(*watched.state.borrow(), State::Incomplete(Some(failed)));
    take(&watched, Event::Init).expect("room");
    take(&watched, Event::InitDone).expect("room");
    watched.works();
    watched.call_failed(&refused(500));
    watched.call_failed(&refused(503));
    assert_eq!(*watched.state.borrow(), State::Complete, "what is known stays known");
    let outage = lock(&watched.outage).clone().expect("it fails");
    assert_eq!(outage.why, refused(500).to_string(), "since the first failure");
    assert_eq!(watched.problem(&pods()), None, "not for so long that it matters");
    watched.works();
    assert_eq!(*lock(&watched.outage), None);
}

#[test]
fn a_collection_above_its_limit_is_refused() {
    let watched = watched();
    take(&watched, Event::Init).expect("room");
    let text = "x".repeat(1 << 20);
    let refused = (0..100).find_map(|n| take(&watched, Event::InitApply(pod(&n.to_string(), &text))).err());
    let refused = refused.expect("a limit").to_string();
    assert!(refused.contains("67108864 bytes"), "{refused}");
    assert_eq!(watched.bytes.load(Ordering::Relaxed), 0, "it holds nothing any longer");
}

#[test]
fn where_there_is_no_room_the_largest_of_who_has_the_most_ends_and_not_the_one_that_grew() {
    let watches = watches(Arc::default());
    let (bytes, running) = (&watches.bytes, &*watches.running);
    let query = |name: &str| ListQuery { label_selector: Some(name.to_owned()), ..ListQuery::whole(pods()) };
    let begin = |id: Option<&str>, name: &str, mib: usize| {
        let asked_by = id.map(|id| OnceLock::from(id.parse::<PolicyId>().expect("an id"))).unwrap_or_default();
        let watched = Arc::new(Watched { bytes: Arc::clone(bytes), asked_by, ..watched() });
        take(&watched, Event::Init).expect("room");
        for n in 0..mib {
            take(&watched, Event::InitApply(pod(&n.to_string(), &"x".repeat(1 << 20)))).expect("room");
        }
        take(&watched, Event::InitDone).expect("room");
        lock(running).insert(query(name), Arc::clone(&watched));
        watched
    };
    let victim = begin(Some("namespaced/b/x"), "victim", 3);
    let (small, large) = (begin(Some("namespaced/a/x"), "small", 3), begin(Some("namespaced/a/x"), "large", 9));
    // Published policies need these two, and a guest has begun one of them.
    let (shared, found) = (begin(None, "shared", 1), begin(Some("namespaced/c/x"), "found", 13));
    watches.note_needs(&["shared", "found"].map(query).into());
    let all = bytes.load(Ordering::Relaxed);
    assert_eq!(make_room(running, &victim, all), Ok(()), "there is room");
    take(&victim, Event::Apply(pod("new", "x"))).expect("room");
    assert_eq!(make_room(running, &victim, all), Ok(()));
    assert_eq!(*large.state.borrow(), State::Refused(CollectionError::AllTooLarge(ALL).to_string()));
    assert_eq!([&victim, &small, &shared].map(|watched| names(watched).len()), [4, 3, 1]);
    assert_eq!(*found.state.borrow(), State::Complete);
    // An event that came at the same time changes nothing any more.
    take(&large, Event::Apply(pod("late", "x"))).expect("nothing");
    let kept: u64 = lock(running).values().map(|watched| lock(&watched.objects).bytes).sum();
    assert_eq!((kept, lock(&large.objects).bytes), (bytes.load(Ordering::Relaxed), 0));
    // Lists go before any collection.
    assert_eq!(make_room(running, &victim, kept - 1), Ok(()));
    lock(running).values().for_each(forget_list);
    let kept = bytes.load(Ordering::Relaxed);
    // Now the victim has the most.
    assert_eq!(make_room(running, &victim, kept - 1), Err(CollectionError::AllTooLarge(ALL)));
    // Those that published policies need end nothing small, and end themselves.
    assert_eq!(make_room(running, &shared, kept - 1), Err(CollectionError::AllTooLarge(ALL)));
    // Once no policy needs it any longer, it counts for the policy that asked for it.
    watches.note_needs(&[query("shared")].into());
    assert_eq!(make_room(running, &victim, kept - 1), Ok(()));
    assert_eq!(*found.state.borrow(), State::Refused(CollectionError::AllTooLarge(ALL).to_string()));
}

#[test]
fn a_list_that_is_kept_counts_and_goes_before_any_collection() {
    let watches = watches(Arc::default());
    let (bytes, running) = (&watches.bytes, &*watches.running);
    let all = || bytes.load(Ordering::Relaxed);
    let begin = |name: &str| {
        let asked_by = OnceLock::from("cluster/a".parse::<PolicyId>().expect("an id"));
        let watched = Arc::new(Watched { bytes: Arc::clone(bytes), asked_by, ..watched() });
        take(&watched, Event::Init).expect("room");
        for n in 0..7 {
            take(&watched, Event::InitApply(pod(&n.to_string(), &"x".repeat(1 << 20)))).expect("room");
        }
        take(&watched, Event::InitDone).expect("room");
        let query = ListQuery { label_selector: Some(name.to_owned()), ..ListQuery::whole(pods()) };
        lock(running).insert(query, Arc::clone(&watched));
        watched
    };
    let (one, other) = (begin("one"), begin("other"));
    let objects = all();
    let lists = [&one, &other].map(|watched| watched.render(&pods()).expect("a list"));
    assert_eq!(all(), objects + lists.iter().map(length_of).sum::<u64>());
    assert_eq!(one.render(&pods()).expect("a list").as_ptr(), lists[0].as_ptr(), "it is kept, and counts once");
    assert_eq!(make_room(running, &one, objects), Ok(()));
    assert_eq!(all(), objects);
    assert_eq!([&one, &other].map(|watched| watched.state.borrow().clone()), [State::Complete, State::Complete]);
    // Where there is no room, a list is made and not kept.
    bytes.fetch_add(ALL - objects, Ordering::Relaxed);
    assert_eq!((one.render(&pods()), all()), (Ok(lists[0].clone()), ALL));
    bytes.fetch_sub(ALL - objects, Ordering::Relaxed);
    // A change ends it, and so does a new list of the objects that needs its room.
    one.render(&pods()).expect("a list");
    take(&one, Event::Delete(pod("6", ""))).expect("room");
    assert_eq!(all(), lock(&one.objects).bytes + lock(&other.objects).bytes);
    one.render(&pods()).expect("a list");
    take(&one, Event::Init).expect("room");
    for n in 0..56 {
        take(&one, Event::InitApply(pod(&n.to_string(), &"x".repeat(1 << 20)))).expect("room");
    }
    assert!(all() < objects + (57 << 20), "without the list");
    one.end();
    other.end();
    assert_eq!(all(), 0);
}

#[test]
fn a_watch_that_fails_goes_on_while_policies_need_it() {
    let watched = Arc::new(watched());
    watched.failed(Failed::ended());
    *lock(&watched.used) = Instant::now().checked_sub(FAILED).expect("a time");
    let watches = watches(Arc::default());
    let (query, guest) = (ListQuery::whole(pods()), "cluster/guest".parse().expect("an id"));
    lock(&watches.running).insert(query.clone(), Arc::clone(&watched));
    assert!(watches.find(&query, None).is_none());
    watches.note_needs(&[query.clone()].into());
    assert!(watches.find(&query, Some(&guest)).is_some());
    assert_eq!(watched.charged_to(), None);
    watches.note_needs(&HashSet::new());
    assert_eq!(watched.charged_to(), Some(&guest), "who used it first");
}

#[test]
fn what_comes_after_the_end_of_a_watch_changes_nothing() {
    let ends: [fn(&Watched); 2] = [Watched::end, |watched| watched.refuse(&CollectionError::AllTooLarge(ALL))];
    for end in ends {
        let watched = watched();
        take(&watched, Event::Init).expect("room");
        end(&watched);
        let state = watched.state.borrow().clone();
        for event in [Event::InitApply(pod("late", "x")), Event::InitDone, Event::Apply(pod("later", "x"))] {
            take(&watched, event).expect("nothing");
        }
        assert_eq!(*watched.state.borrow(), state, "what waits for it learns that it has ended");
        assert_eq!((lock(&watched.objects).bytes, watched.bytes.load(Ordering::Relaxed)), (0, 0));
    }
}

#[tokio::test]
async fn eight_policies_that_watch_all_they_may_keep_nobody_from_watching() {
    let published = Arc::new(PublishedGrants::default());
    published.publish(&manifest(&[("cluster/a", 1, &["*"], &["Pod"])]));
    let watches = watches(published);
    // No server listens on this address.
    let client = Client::try_from(Config::new("http://127.0.0.1:9".parse().expect("an address"))).expect("a client");
    let begin = |policy: Option<&str>, query: ListQuery| {
        let policy: Option<PolicyId> = policy.map(|id| id.parse().expect("an id"));
        let discovered = Discovered { resource: resource(), is_namespaced: true };
        watches.begin(policy.as_ref(), Collection { query, client: client.clone(), discovered }).map(drop)
    };
    let selecting = |text: String| ListQuery { label_selector: Some(text), ..ListQuery::whole(pods()) };
    let began = |id: &str| {
        let id: PolicyId = id.parse().expect("an id");
        lock(&watches.running).values().filter(|watched| watched.asked_by.get() == Some(&id)).count()
    };
    for policy in 0..8 {
        for number in 0..40 {
            let query = selecting(format!("policy={policy},number={number}"));
            begin(Some(&format!("cluster/flood-{policy}")), query).expect("a watch");
        }
        assert_eq!(began(&format!("cluster/flood-{policy}")), 32);
    }
    assert_eq!(lock(&watches.running).len(), MOST);
    begin(None, ListQuery::probe(pods())).expect("that of the installation");
    for number in 0..4 {
        begin(Some("cluster/other"), selecting(format!("other={number}"))).expect("that of another policy");
    }
    assert_eq!(began("cluster/other"), 4);
    assert_eq!(lock(&watches.running).len(), MOST);
}

#[test]
fn a_list_that_is_no_reply_any_more_says_what_to_do() {
    let watched = watched();
    take(&watched, Event::Init).expect("room");
    let text = "x".repeat(1 << 20);
    for n in 0..9 {
        take(&watched, Event::InitApply(pod(&n.to_string(), &text))).expect("room");
    }
    take(&watched, Event::InitDone).expect("room");
    let error = watched.render(&pods()).expect_err("too long").to_string();
    assert!(error.contains("8388608") && error.contains("field_masks"), "{error}");
}

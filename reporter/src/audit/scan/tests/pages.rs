//! Lists that are refused, or become too old, while a scan reads them.

use axum::http::StatusCode;

use super::*;

/// Objects of a page.
const PAGE: usize = 6;
const PAGES: usize = 2 * OBJECTS / PAGE;

/// A stage on which lists of ConfigMaps have [`PAGES`] pages. `refusal` says with which code the page with a number, from 0, is refused, if it is.
fn paged(refusal: impl Fn(usize) -> Option<u16> + Clone + Send + Sync + 'static) -> Stage {
    let page = move |RawQuery(query): RawQuery| async move {
        let token = query.as_deref().unwrap_or_default().split('&').find_map(|part| part.strip_prefix("continue="));
        let number: usize = token.map_or(0, |token| token.parse().expect("a number"));
        let (code, body) = match refusal(number) {
            Some(code) => refused(code),
            None => {
                let next = if number + 1 < PAGES { (number + 1).to_string() } else { String::new() };
                let items: Vec<Value> = objects().into_iter().skip(number * PAGE).take(PAGE).collect();
                (200, json!({"apiVersion": "v1", "kind": "List", "metadata": {"continue": next}, "items": items}))
            }
        };
        (StatusCode::from_u16(code).expect("a code"), answer(&body))
    };
    Stage::listing(get(page), DEADLINE, INTERVAL, [json!({}), json!({})], 3600)
}

/// How many objects the policy of all namespaces was asked about since the last call, each once.
fn asked_once(stage: &Stage) -> usize {
    let asked = stage.asked("cluster/all");
    assert_eq!(asked.iter().collect::<BTreeSet<_>>().len(), asked.len(), "asked twice: {asked:?}");
    asked.len()
}

#[tokio::test]
async fn a_list_that_becomes_too_old_again_and_again_is_read_to_its_end_as_long_as_it_gets_further() {
    // The furthest page so far, and that when the list was begun last. It becomes too old after one page more than before.
    let reached = Arc::new(Mutex::new((0, 0)));
    let mut stage = paged(move |page| {
        let mut reached = lock(&reached);
        if page == 0 {
            reached.1 = reached.0;
        }
        if page > reached.1 + 1 {
            return Some(410);
        }
        reached.0 = reached.0.max(page);
        None
    });
    let found = stage.scan().await;
    let all = &found["cluster/all"];
    assert!(is_complete(all, 2 * OBJECTS) && all.unreadable.is_empty(), "{all:?}");
    assert_eq!(asked_once(&stage), 2 * OBJECTS);
}

#[tokio::test]
async fn a_list_that_never_gets_beyond_its_first_page_is_given_up() {
    let mut stage = paged(|page| (page > 0).then_some(410));
    let found = stage.scan().await;
    let all = &found["cluster/all"];
    assert_eq!((all.checked, all.unreadable.as_slice()), (PAGE as i64, &["configmaps".to_owned()][..]));
    assert_eq!(asked_once(&stage), PAGE);
}

#[tokio::test]
async fn a_list_of_which_one_page_is_refused_for_a_moment_is_read_to_its_end() {
    for (refused_page, code) in [(0, 403), (1, 403), (1, 404)] {
        let is_over = Arc::new(Mutex::new(false));
        let mut stage = paged(move |page| {
            let is_now = page == refused_page && !std::mem::replace(&mut *lock(&is_over), true);
            is_now.then_some(code)
        });
        let found = stage.scan().await;
        let all = &found["cluster/all"];
        assert!(is_complete(all, 2 * OBJECTS) && all.unreadable.is_empty(), "{refused_page}: {all:?}");
    }
}

/// It does not answer, then answers before it has read its RBAC rules.
#[tokio::test]
async fn an_api_server_that_restarts_during_a_scan_hides_no_list() {
    let codes = Arc::new(Mutex::new(vec![403, 403, 500, 500, 500, 500]));
    let mut stage = paged(move |page| if page == 0 { lock(&codes).pop() } else { None });
    let all = &stage.scan().await["cluster/all"];
    assert!(is_complete(all, 2 * OBJECTS) && all.unreadable.is_empty(), "{all:?}");
}

#[tokio::test]
async fn what_policies_said_of_the_objects_behind_a_page_that_fails_is_remembered() {
    let fails = Arc::new(Mutex::new(false));
    let mut stage = {
        let fails = Arc::clone(&fails);
        paged(move |page| (page > 0 && *lock(&fails)).then_some(400))
    };
    for (is_failing, asked) in [(false, 2 * OBJECTS), (true, 0), (false, 0)] {
        *lock(&fails) = is_failing;
        let found = stage.scan().await;
        let all = &found["cluster/all"];
        assert_eq!((all.unreadable.is_empty(), asked_once(&stage)), (!is_failing, asked), "{all:?}");
        assert_eq!(is_complete(all, 2 * OBJECTS), !is_failing, "{all:?}");
    }
}

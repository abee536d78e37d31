//! What policies remember from one request to the next: `cache/set` and `cache/get`, as upstream's RFC 0024 proposes them.
//!
//! Each loaded generation of a policy has a cache of its own, which goes with it: so no policy sees the keys of another, nor those of
//! an earlier policy of its name. Replicas do not share values.
//!
//! The bytes are shared by max-min: where there is no room, the tenant that keeps the most gives way, and in it the policy that keeps the
//! most. No tenant gives way to one that keeps more, and no policy to another of its tenant that keeps more.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use portcullis_contract::{PolicyId, Tenant};
use portcullis_util::lock;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::link::LinkFailure;

/// What one generation of a policy may keep, in bytes.
const POLICY: usize = 1 << 20;
/// What the policies of a namespace may keep together, and the ClusterPolicies together, in bytes.
const TENANT: usize = 4 << 20;
/// What all policies may keep, in bytes.
const ALL: usize = 16 << 20;
/// Longest key, in bytes.
const MAX_KEY: usize = 1 << 10;
/// Longest value, in bytes.
const MAX_VALUE: usize = 256 << 10;
/// What an entry counts beside its key and its value, in bytes: its places in a map and in the order of expiry.
const OVERHEAD: usize = 256;
/// Longest time that a value is kept; a longer `ttl` is cut.
const MAX_TTL: Duration = Duration::from_secs(24 * 60 * 60);
/// Keys that begin so are the host's own.
const RESERVED: &str = "kubewarden_internal_";

/// The caches of all policies.
#[derive(Debug, Default)]
pub(crate) struct Caches(Mutex<Shared>);

/// The cache of one generation of a policy.
#[derive(Debug)]
pub(crate) struct PolicyCache {
    caches: Arc<Caches>,
    tenant: Tenant,
    number: u64,
}

#[derive(Debug, Default)]
struct Shared {
    /// The number of the newest cache.
    newest: u64,
    /// The number of the newest entry.
    newest_entry: u64,
    /// The caches by number; without those that never kept anything.
    caches: BTreeMap<u64, Cache>,
    /// What each tenant keeps, in bytes; without those that keep nothing.
    tenants: HashMap<Tenant, usize>,
    /// What all keep, in bytes.
    bytes: usize,
}

#[derive(Debug)]
struct Cache {
    tenant: Tenant,
    bytes: usize,
    entries: HashMap<Arc<str>, Entry>,
    /// The keys in the order in which they expire.
    order: BTreeMap<(Instant, u64), Arc<str>>,
}

#[derive(Debug)]
struct Entry {
    value: Arc<[u8]>,
    until: Instant,
    number: u64,
}

#[derive(Deserialize)]
struct SetRequest {
    key: String,
    value: Vec<u8>,
    /// In seconds.
    ttl: u64,
}

#[derive(Deserialize)]
struct GetRequest {
    key: String,
}

#[derive(Serialize)]
struct SetReply<'a> {
    code: i32,
    message: &'a str,
}

#[derive(Serialize)]
struct GetReply<'a> {
    code: i32,
    message: &'a str,
    value: &'a [u8],
}

impl PolicyCache {
    /// An empty cache of a policy.
    pub(crate) fn new(caches: &Arc<Caches>, policy: &PolicyId) -> Self {
        let mut shared = lock(&caches.0);
        shared.newest += 1;
        Self { caches: Arc::clone(caches), tenant: Tenant::of(policy), number: shared.newest }
    }

    /// An empty cache for another generation of the same policy.
    pub(crate) fn of_next_generation(&self) -> Self {
        let mut shared = lock(&self.caches.0);
        shared.newest += 1;
        Self { caches: Arc::clone(&self.caches), tenant: self.tenant.clone(), number: shared.newest }
    }

    /// Answers `cache/set`. A value that cannot be kept is an answer with a code, and not an error.
    ///
    /// # Errors
    /// When the payload is not a request.
    pub(crate) fn set(&self, payload: &[u8], now: Instant) -> Result<Vec<u8>, LinkFailure> {
        let SetRequest { key, value, ttl } = decode(payload)?;
        let refusal = if key.starts_with(RESERVED) {
            Some(format!("keys must not begin with {RESERVED}"))
        } else if key.len() > MAX_KEY {
            Some(format!("the key has {} bytes, the limit is {MAX_KEY}", key.len()))
        } else if value.len() > MAX_VALUE {
            Some(format!("the value has {} bytes, the limit is {MAX_VALUE}", value.len()))
        } else {
            let until = now + Duration::from_secs(ttl).min(MAX_TTL);
            let is_kept = lock(&self.caches.0).keep(self, &key, value.into(), until, now);
            (!is_kept).then(|| "there is no room, and no policy keeps more than its share".to_owned())
        };
        let message = refusal.as_deref().unwrap_or("Operation successful");
        Ok(encode(&SetReply { code: refusal.is_some().into(), message }))
    }

    /// Answers `cache/get`. A key that is absent or has expired has an empty value.
    ///
    /// # Errors
    /// When the payload is not a request.
    pub(crate) fn get(&self, payload: &[u8], now: Instant) -> Result<Vec<u8>, LinkFailure> {
        let GetRequest { key } = decode(payload)?;
        // The reply is written without the lock, for which others wait.
        let value = lock(&self.caches.0).value(self.number, &key, now);
        let message = if value.is_some() { "Value found" } else { "Value not found" };
        Ok(encode(&GetReply { code: 0, message, value: value.as_deref().unwrap_or_default() }))
    }
}

impl Drop for PolicyCache {
    fn drop(&mut self) {
        let removed = lock(&self.caches.0).remove(self.number);
        // Freed without the lock.
        drop(removed);
    }
}

impl Shared {
    fn value(&self, number: u64, key: &str, now: Instant) -> Option<Arc<[u8]>> {
        let entry = self.caches.get(&number)?.entries.get(key)?;
        (entry.until > now).then(|| Arc::clone(&entry.value))
    }

    /// Keeps a value in place of the key's previous one, if there is room or other entries give way. Says whether it is kept.
    fn keep(&mut self, owner: &PolicyCache, key: &str, value: Arc<[u8]>, until: Instant, now: Instant) -> bool {
        let bytes = cost(key, &value);
        self.change(owner, |own| {
            own.remove(key);
            while own.order.first_key_value().is_some_and(|((until, _), _)| *until <= now) {
                own.remove_first();
            }
        });
        while let Some(victim) = self.in_the_way(owner, bytes) {
            if !self.remove_first(victim) {
                return false;
            }
        }
        self.newest_entry += 1;
        let entry = Entry { value, until, number: self.newest_entry };
        self.change(owner, |own| own.insert(key, entry));
        true
    }

    /// The cache that must give way before a policy can keep `bytes` more, perhaps its own; none where there is room.
    fn in_the_way(&self, owner: &PolicyCache, bytes: usize) -> Option<u64> {
        let own = self.bytes(owner.number) + bytes;
        if own > POLICY {
            return Some(owner.number);
        }
        let of_tenant = self.tenants.get(&owner.tenant).copied().unwrap_or(0) + bytes;
        if of_tenant <= TENANT {
            if self.bytes + bytes <= ALL {
                return None;
            }
            let (largest, kept) = self.tenants.iter().max_by_key(|(_, kept)| **kept)?;
            if *kept > of_tenant {
                return self.largest(largest);
            }
        }
        let victim = self.largest(&owner.tenant).filter(|victim| self.bytes(*victim) > own);
        victim.or(Some(owner.number))
    }

    fn largest(&self, tenant: &Tenant) -> Option<u64> {
        let of_tenant = self.caches.iter().filter(|(_, cache)| cache.tenant == *tenant);
        of_tenant.max_by_key(|(_, cache)| cache.bytes).map(|(number, _)| *number)
    }

    fn bytes(&self, number: u64) -> usize {
        self.caches.get(&number).map_or(0, |cache| cache.bytes)
    }

    /// Changes a policy's cache, which is made if it has none yet.
    fn change(&mut self, owner: &PolicyCache, change: impl FnOnce(&mut Cache)) {
        let own = self.caches.entry(owner.number).or_insert_with(|| Cache::new(owner.tenant.clone()));
        let before = own.bytes;
        change(own);
        let now = own.bytes;
        self.count(&owner.tenant, before, now);
    }

    /// Removes the entry of a cache that expires first. Says whether there was one.
    fn remove_first(&mut self, number: u64) -> bool {
        let Some(cache) = self.caches.get_mut(&number) else { return false };
        let (before, tenant) = (cache.bytes, cache.tenant.clone());
        let was_there = cache.remove_first();
        let now = cache.bytes;
        self.count(&tenant, before, now);
        was_there
    }

    fn remove(&mut self, number: u64) -> Option<Cache> {
        let removed = self.caches.remove(&number)?;
        self.count(&removed.tenant, removed.bytes, 0);
        Some(removed)
    }

    fn count(&mut self, tenant: &Tenant, before: usize, now: usize) {
        self.bytes = self.bytes - before + now;
        let kept = self.tenants.get(tenant).copied().unwrap_or(0) - before + now;
        if kept == 0 {
            self.tenants.remove(tenant);
        } else {
            self.tenants.insert(tenant.clone(), kept);
        }
    }
}

impl Cache {
    fn new(tenant: Tenant) -> Self {
        Self { tenant, bytes: 0, entries: HashMap::new(), order: BTreeMap::new() }
    }

    fn insert(&mut self, key: &str, entry: Entry) {
        let key: Arc<str> = key.into();
        self.bytes += cost(&key, &entry.value);
        self.order.insert((entry.until, entry.number), Arc::clone(&key));
        self.entries.insert(key, entry);
    }

    fn remove(&mut self, key: &str) {
        if let Some(entry) = self.entries.remove(key) {
            self.order.remove(&(entry.until, entry.number));
            self.bytes -= cost(key, &entry.value);
        }
    }

    /// Removes the entry that expires first. Says whether there was one.
    fn remove_first(&mut self) -> bool {
        let first = self.order.first_key_value().map(|(_, key)| Arc::clone(key));
        if let Some(key) = &first {
            self.remove(key);
        }
        first.is_some()
    }
}

fn cost(key: &str, value: &[u8]) -> usize {
    key.len() + value.len() + OVERHEAD
}

fn decode<T: DeserializeOwned>(payload: &[u8]) -> Result<T, LinkFailure> {
    serde_json::from_slice(payload)
        .map_err(|error| LinkFailure::failed(&format!("the request cannot be read: {error}")))
}

fn encode(reply: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(reply).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const KIB: usize = 1 << 10;

    fn cache(caches: &Arc<Caches>, policy: &str) -> PolicyCache {
        PolicyCache::new(caches, &policy.parse().expect("an id"))
    }

    fn set(cache: &PolicyCache, key: &str, value: &[u8], ttl: u64, now: Instant) -> Value {
        let payload = json!({"key": key, "value": value, "ttl": ttl}).to_string();
        serde_json::from_slice(&cache.set(payload.as_bytes(), now).expect("a reply")).expect("JSON")
    }

    fn get(cache: &PolicyCache, key: &str, now: Instant) -> Value {
        let payload = json!({ "key": key }).to_string();
        serde_json::from_slice(&cache.get(payload.as_bytes(), now).expect("a reply")).expect("JSON")
    }

    /// Keeps twenty values of 200 KiB, each for longer than the one before, and says how many were kept.
    fn flood(cache: &PolicyCache, now: Instant) -> usize {
        let mut shared = lock(&cache.caches.0);
        let keep = |n: u64| {
            let until = now + Duration::from_secs(10 + n);
            shared.keep(cache, &format!("k{n}"), vec![7; 200 * KIB].into(), until, now)
        };
        (0..20).map(keep).filter(|is_kept| *is_kept).count()
    }

    fn kept(caches: &Arc<Caches>, tenant: Option<&str>) -> usize {
        let shared = lock(&caches.0);
        let counted: usize =
            shared.caches.values().flat_map(|cache| &cache.entries).map(|(k, e)| cost(k, &e.value)).sum();
        assert_eq!(counted, shared.caches.values().map(|cache| cache.bytes).sum::<usize>(), "the account is right");
        assert_eq!((counted, counted), (shared.bytes, shared.tenants.values().sum()), "so are the sums");
        let is_of = |cache: &&Cache| tenant.is_none_or(|tenant| cache.tenant == tenant_of(tenant));
        shared.caches.values().filter(is_of).map(|cache| cache.bytes).sum()
    }

    fn tenant_of(namespace: &str) -> Tenant {
        Tenant::of(&format!("namespaced/{namespace}/a").parse().expect("an id"))
    }

    #[test]
    fn the_next_generation_begins_without_values() {
        let (caches, now) = (Arc::default(), Instant::now());
        let one = cache(&caches, "namespaced/team/a");
        set(&one, "k", &[1], 10, now);
        let next = one.of_next_generation();
        assert_eq!(
            (get(&next, "k", now)["value"].clone(), get(&one, "k", now)["value"].clone()),
            (json!([]), json!([1]))
        );
        set(&next, "k", &[2], 10, now);
        drop(one);
        assert_eq!(get(&next, "k", now)["value"], json!([2]));
        assert_eq!(kept(&caches, Some("team")), cost("k", &[2]), "what the one before kept is gone");
    }

    #[test]
    fn a_value_is_kept_for_its_time() {
        let (caches, now) = (Arc::default(), Instant::now());
        let one = cache(&caches, "cluster/a");
        assert_eq!(set(&one, "k", &[1, 2], 10, now), json!({"code": 0, "message": "Operation successful"}));
        assert_eq!(get(&one, "k", now), json!({"code": 0, "message": "Value found", "value": [1, 2]}));
        let missed = json!({"code": 0, "message": "Value not found", "value": []});
        assert_eq!(get(&one, "k", now + Duration::from_secs(10)), missed);
        assert_eq!(get(&one, "other", now), missed);
        set(&one, "k", &[3], u64::MAX, now);
        assert_eq!(get(&one, "k", now + MAX_TTL), missed, "a long time is cut");
        assert_eq!(get(&one, "k", now)["value"], json!([3]), "the last one counts");
    }

    #[test]
    fn nobody_sees_the_keys_of_another_policy_or_generation() {
        let (caches, now) = (Arc::default(), Instant::now());
        let (one, next, other) =
            (cache(&caches, "cluster/a"), cache(&caches, "cluster/a"), cache(&caches, "namespaced/team/a"));
        set(&one, "k", &[1], 10, now);
        assert_eq!(get(&next, "k", now)["value"], json!([]));
        assert_eq!(get(&other, "k", now)["value"], json!([]));
    }

    #[test]
    fn what_breaks_a_limit_is_refused_with_a_code() {
        let (caches, now) = (Arc::default(), Instant::now());
        let one = cache(&caches, "cluster/a");
        for (key, value, message) in [
            ("kubewarden_internal_x".to_owned(), vec![], "keys must not begin with kubewarden_internal_"),
            ("k".repeat(MAX_KEY + 1), vec![], "the key has 1025 bytes, the limit is 1024"),
            ("k".to_owned(), vec![0; MAX_VALUE + 1], "the value has 262145 bytes, the limit is 262144"),
        ] {
            assert_eq!(set(&one, &key, &value, 10, now), json!({"code": 1, "message": message}));
            assert_eq!(get(&one, &key, now)["message"], "Value not found");
        }
        for bad in [&b"7"[..], b"{}", br#"{"key":"k","value":[256],"ttl":1}"#, br#"{"key":"k","value":[1],"ttl":-1}"#] {
            assert!(matches!(one.set(bad, now), Err(LinkFailure::Failed(text)) if text.contains("cannot be read")));
        }
    }

    #[test]
    fn a_policy_has_its_limit_and_what_expires_first_gives_way() {
        let (caches, now) = (Arc::default(), Instant::now());
        let one = cache(&caches, "namespaced/team/a");
        assert_eq!(flood(&one, now), 20);
        assert!(kept(&caches, None) <= POLICY);
        assert_eq!(get(&one, "k19", now)["message"], "Value found");
        assert_eq!(get(&one, "k0", now)["message"], "Value not found");
        let small: Vec<_> = (0..20_000).map(|n| format!("small{n}")).collect();
        small.iter().for_each(|key| drop(set(&one, key, &[], 5, now)));
        assert!(kept(&caches, None) <= POLICY, "small entries count too");
        assert_eq!(set(&one, "after", &[7; 200 * KIB], 5, now + Duration::from_secs(6))["code"], 0);
        let keys: Vec<_> = lock(&caches.0).caches[&one.number].entries.keys().map(|key| key.to_string()).collect();
        assert!(keys.iter().all(|key| !key.starts_with("small")), "what has expired is removed first");
    }

    #[test]
    fn a_flood_of_values_stays_within_its_policy_its_namespace_and_the_total() {
        let (caches, now) = (Arc::<Caches>::default(), Instant::now());
        let team: Vec<_> = (0..20).map(|n| cache(&caches, &format!("namespaced/team/b{n}"))).collect();
        let _: usize = team.iter().map(|cache| flood(cache, now)).sum();
        assert!(kept(&caches, Some("team")) <= TENANT);
        for cache in &team {
            assert_ne!(lock(&caches.0).bytes(cache.number), 0, "each policy has its share");
        }
        let many: Vec<_> = (0..60).map(|n| cache(&caches, &format!("namespaced/n{}/p{}", n / 4, n % 4))).collect();
        let _: usize = many.iter().map(|cache| flood(cache, now)).sum();
        assert!(kept(&caches, None) <= ALL);
        for namespace in (0..15).map(|n| format!("n{n}")).chain(["team".to_owned()]) {
            assert!(kept(&caches, Some(&namespace)) > 700 * KIB, "{namespace} has its share");
        }
        drop((team, many));
        assert_eq!(kept(&caches, None), 0, "a generation that is gone keeps nothing");
    }

    #[test]
    fn where_nobody_keeps_more_a_value_is_refused() {
        let (caches, now) = (Arc::<Caches>::default(), Instant::now());
        let keep = |cache: &PolicyCache, key: &str, size: usize| {
            lock(&caches.0).keep(cache, key, vec![7; size].into(), now + Duration::from_secs(5), now)
        };
        let team: Vec<_> = (0..40).map(|n| cache(&caches, &format!("namespaced/team/b{n}"))).collect();
        let kept: Vec<_> = team.iter().map(|cache| keep(cache, "k", 200 * KIB)).collect();
        assert_eq!(kept.iter().filter(|is_kept| **is_kept).count(), 20);
        assert!(!kept[39] && keep(&team[39], "k", 100 * KIB), "a smaller one has its share");
    }
}

//! The signatures of OCI artifacts, kept beside their modules: for the next policy no network is needed, and other loaders get them along with
//! the module.
//!
//! A file of signatures never changes. Other signatures of the same manifest, from another repository or a later time, are another file.
//! Otherwise a tenant who signs somebody else's manifest in a repository of his own would remove what proves it to others.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use portcullis_contract::Digest;
use portcullis_process::files;
use portcullis_registry::oci::Manifest;
use portcullis_registry::signature::Material;
use serde::{Deserialize, Serialize};

use super::Volume;

/// Largest file of signatures, and most bytes of signatures that are given to another loader at once.
pub(crate) const MAX_SIGNATURES: u64 = 16 << 20;

/// Signatures of a manifest.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KeptSignatures {
    /// The repositories that the manifest was found with these signatures in: one, or several in a file of an earlier release.
    pub places: BTreeSet<String>,
    /// The signatures. They are not trusted because they are kept: the signers are checked again each time.
    pub signatures: Material,
}

/// A manifest and its signatures. Of a manifest with several files of signatures there are several.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SignedManifest {
    /// The manifest's text, whose digest is what was signed.
    manifest: String,
    /// Its signatures.
    #[serde(flatten)]
    pub kept: KeptSignatures,
}

impl KeptSignatures {
    /// Signatures that were found in the repository `place`.
    pub(crate) fn at(place: String, signatures: Material) -> Self {
        Self { places: BTreeSet::from([place]), signatures }
    }
}

impl SignedManifest {
    /// The manifest, if it was found signed in the repository `place` and its module has this digest.
    pub(crate) fn manifest_of(&self, module: &Digest, place: &str) -> Option<Manifest> {
        if !self.kept.places.contains(place) {
            return None;
        }
        let manifest = Manifest::parse(self.manifest.clone().into_bytes()).ok()?;
        let is_it = manifest.module().is_ok_and(|layer| layer.digest == *module);
        is_it.then_some(manifest)
    }
}

/// A file of signatures.
struct SignatureFile {
    /// The manifest that was signed.
    manifest: Digest,
    path: PathBuf,
    /// Its size in bytes.
    size: u64,
}

impl Volume {
    /// The signatures that are kept for a manifest.
    pub(crate) fn signatures(&self, manifest: &Digest, module: &Digest) -> Vec<KeptSignatures> {
        let files = self.signature_files(module).into_iter().filter(|file| file.manifest == *manifest);
        files.filter_map(|file| read(&file.path)).collect()
    }

    /// The file that signatures of a manifest need, and its content; `None` if they are kept already.
    pub(super) fn new_signatures(
        &self,
        manifest: &Digest,
        module: &Digest,
        signed: &KeptSignatures,
    ) -> Option<(PathBuf, Vec<u8>)> {
        let text = serde_json::to_vec(signed).expect("has text keys only");
        // As it would be read back: what is not written makes no difference.
        let signed: KeptSignatures = serde_json::from_slice(&text).ok()?;
        let is_same =
            |kept: &KeptSignatures| kept.signatures == signed.signatures && kept.places.is_superset(&signed.places);
        if self.signatures(manifest, module).iter().any(is_same) {
            return None;
        }
        // The first file has the name that earlier releases know.
        let first = self.oci_path(manifest, module, "signatures");
        let other = || self.oci_path(manifest, module, &format!("{}.signatures", Digest::of(&text).hex()));
        let path = if fs::symlink_metadata(&first).is_err() { first } else { other() };
        Some((path, text))
    }

    /// The manifests that name a module and whose signatures are kept. If they are more than another loader takes at once, the smallest: so
    /// no signatures that somebody adds are in the way of smaller ones.
    pub(crate) fn signed_manifests(&self, module: &Digest) -> Vec<SignedManifest> {
        let mut texts = HashMap::new();
        let mut files = Vec::new();
        for file in self.signature_files(module) {
            let text = texts.entry(file.manifest).or_insert_with(|| {
                let bytes = self.oci_manifest(&file.manifest)?.bytes;
                String::from_utf8(bytes).ok()
            });
            // A text may take up to twice its length in JSON.
            let Some(text) = text else { continue };
            files.push((2 * (text.len() as u64 + file.size), file));
        }
        files.sort_by(|(a, one), (b, other)| a.cmp(b).then_with(|| one.path.cmp(&other.path)));
        let (mut found, mut sum) = (Vec::new(), 0);
        for (size, file) in files {
            sum += size;
            if sum > MAX_SIGNATURES {
                break;
            }
            let text = texts.get(&file.manifest).cloned().flatten();
            let Some((manifest, kept)) = text.zip(read(&file.path)) else { continue };
            found.push(SignedManifest { manifest, kept });
        }
        found
    }

    /// The files of signatures of all manifests of a module.
    fn signature_files(&self, module: &Digest) -> Vec<SignatureFile> {
        let Ok(items) = fs::read_dir(self.root.join("manifests")) else { return Vec::new() };
        let module = module.hex();
        let of = |item: fs::DirEntry| {
            let name = item.file_name();
            let stem = name.to_str().filter(|name| name.ends_with(".signatures"))?.split('.').next()?;
            let (manifest, of) = stem.split_once('-')?;
            let manifest = format!("sha256:{manifest}").parse().ok().filter(|_| of == module)?;
            Some(SignatureFile { manifest, path: item.path(), size: item.metadata().ok()?.len() })
        };
        items.flatten().filter_map(of).collect()
    }
}

fn read(path: &Path) -> Option<KeptSignatures> {
    serde_json::from_slice(&files::read_regular(path, MAX_SIGNATURES).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashSet};
    use std::sync::Arc;

    use portcullis_contract::Tenant;
    use serde_json::json;

    use super::*;
    use crate::claims::{Claims, Need};
    use crate::volume::Keep;

    fn claims(tenant: &Tenant) -> Arc<Claims> {
        let mut claims = Claims::default();
        claims.add(tenant, Need::New);
        Arc::new(claims)
    }

    /// A signature by somebody, whose text is `size` bytes long.
    fn by(who: &str, size: usize) -> Material {
        let layer = json!({"mediaType": "signature", "annotations": {"by": who, "text": "x".repeat(size)}, "body": ""});
        serde_json::from_value(json!({"layers": [layer]})).expect("a signature")
    }

    struct Signed {
        _folder: tempfile::TempDir,
        volume: Volume,
        manifest: Manifest,
        module: Digest,
    }

    impl Signed {
        fn new() -> Self {
            let folder = tempfile::tempdir().expect("a folder");
            let volume = Volume::open(folder.path(), "00000000000000aa").expect("opens").expect("is free");
            let (manifest, module) = (Manifest::of_module(b"module", BTreeMap::new()), Digest::of(b"module"));
            Self { _folder: folder, volume, manifest, module }
        }

        /// Keeps what somebody has signed in a repository. True if that was possible.
        fn keep(&self, place: &str, signatures: Material, tenant: &Tenant) -> bool {
            let signed = KeptSignatures::at(place.to_owned(), signatures);
            self.volume.keep_beside(&self.manifest, &self.module, Some(&signed), &claims(tenant)).is_ok()
        }

        /// Whether signatures are a proof for the repository.
        fn is_proof(&self, place: &str, signatures: &Material) -> bool {
            let found = self.volume.signed_manifests(&self.module);
            let is_it = |signed: &&SignedManifest| signed.kept.signatures == *signatures;
            let manifest = found.iter().filter(is_it).find_map(|signed| signed.manifest_of(&self.module, place));
            manifest.is_some_and(|manifest| manifest == self.manifest)
        }
    }

    #[test]
    fn signatures_stay_as_long_as_their_module_or_the_wish_for_it() {
        let Signed { _folder, volume, manifest, module } = Signed::new();
        let unsigned = Manifest::of_module(b"module", [("name".to_owned(), "other".to_owned())].into());
        volume.keep_beside(&unsigned, &module, None, &claims(&Tenant::Cluster)).expect("keeps");
        for place in ["registry://a/b", "registry://mirror/b"] {
            let signed = KeptSignatures::at(place.to_owned(), Material::default());
            volume.keep_beside(&manifest, &module, Some(&signed), &claims(&Tenant::Cluster)).expect("keeps");
        }
        let kept = volume.signed_manifests(&module);
        for place in ["registry://a/b", "registry://mirror/b"] {
            let read: Vec<_> = kept.iter().filter_map(|signed| signed.manifest_of(&module, place)).collect();
            assert_eq!(read, vec![manifest.clone()], "only the signed manifest is found");
            let of_others = kept.iter().filter_map(|signed| signed.manifest_of(&Digest::of(b"other"), place));
            assert_eq!(of_others.count(), 0);
        }
        let elsewhere = kept.iter().filter_map(|signed| signed.manifest_of(&module, "registry://a/c"));
        assert_eq!(elsewhere.count(), 0, "nobody signed it there");
        let text = serde_json::to_string(&kept).expect("serialises");
        assert_eq!(serde_json::from_str::<Vec<SignedManifest>>(&text).expect("parses"), kept);

        let wanted = Keep { digests: HashSet::from([module]), ..Keep::default() };
        volume.prune(&wanted).expect("prunes");
        assert_eq!(volume.signed_manifests(&module).len(), 2, "the module may be on its way");
        volume.prune(&Keep::default()).expect("prunes");
        assert!(volume.signed_manifests(&module).is_empty() && volume.signatures(&manifest.digest, &module).is_empty());
    }

    #[test]
    fn what_a_tenant_signs_does_not_replace_what_others_have_signed() {
        let (signed, tenant) = (Signed::new(), Tenant::Namespace("a".into()));
        let (vendor, own) = (by("vendor", 0), by("tenant", 0));
        assert!(signed.keep("registry://vendor/m", vendor.clone(), &Tenant::Cluster));
        assert!(signed.keep("registry://tenant/m", own.clone(), &tenant));
        assert!(signed.keep("registry://vendor/m", own.clone(), &tenant), "by the tenant's policy for that repository");
        assert!(signed.is_proof("registry://vendor/m", &vendor) && signed.is_proof("registry://tenant/m", &own));
        assert!(!signed.is_proof("registry://tenant/m", &vendor), "the vendor signed nothing there");
        assert_eq!(signed.volume.signatures(&signed.manifest.digest, &signed.module).len(), 3);
        assert!(signed.keep("registry://vendor/m", vendor, &Tenant::Cluster));
        assert_eq!(signed.volume.signatures(&signed.manifest.digest, &signed.module).len(), 3, "it is kept once");
    }

    #[test]
    fn z08_repositories_without_end_for_one_module_leave_room_for_those_of_others() {
        for size in [0, 100 << 10] {
            let signed = Signed::new();
            let tenants = ["a", "b"].map(|name| Tenant::Namespace(name.into()));
            let flood = |tenant: &Tenant| {
                let place = |number: usize| format!("registry://{tenant:?}/{number}");
                (0..200).filter(|number| signed.keep(&place(*number), by("tenant", size), tenant)).count()
            };
            let floods = tenants.each_ref().map(flood);
            assert!(floods[0] <= 32 && floods[0] > floods[1] && floods[1] > 5, "{floods:?} of {size} bytes");
            let others = Tenant::Namespace("c".into());
            for (place, tenant) in [("registry://vendor/m", &Tenant::Cluster), ("registry://other/m", &others)] {
                let theirs = by(place, size);
                assert!(signed.keep(place, theirs.clone(), tenant) && signed.is_proof(place, &theirs), "{place}");
            }
        }
    }

    #[test]
    fn z08_a_restart_gives_no_namespace_more_room_beside_a_module_that_cluster_policies_use() {
        let Signed { _folder: folder, mut volume, manifest, module } = Signed::new();
        let (greedy, mut both) = (claims(&Tenant::Namespace("greedy".into())), Claims::default());
        both.add(&Tenant::Cluster, Need::New);
        both.add(&Tenant::Namespace("greedy".into()), Need::New);
        let keep = |volume: &Volume, place: &str, claims: &Arc<Claims>| {
            let signed = KeptSignatures::at(place.to_owned(), by(place, 0));
            volume.keep_beside(&manifest, &module, Some(&signed), claims).is_ok()
        };
        assert!(keep(&volume, "registry://vendor/m", &Arc::new(both)));
        let mut kept = Vec::new();
        for flood in 0..4 {
            let places = (0..200).map(|number| format!("registry://greedy/{flood}/{number}"));
            kept.push(places.filter(|place| keep(&volume, place, &greedy)).count());
            drop(volume);
            volume = Volume::open(folder.path(), "00000000000000aa").expect("opens").expect("is free");
        }
        assert!(kept[0] > 20 && kept[0] <= 32 && kept[1..].iter().all(|more| *more == 0), "{kept:?}");
        assert!(keep(&volume, "registry://other/m", &claims(&Tenant::Namespace("other".into()))), "others have room");
    }

    #[test]
    fn files_of_an_earlier_release_are_read_and_stay_and_it_reads_the_first_of_this_one() {
        let signed = Signed::new();
        assert!(signed.keep("registry://first/m", by("first", 0), &Tenant::Cluster));
        let path = signed.volume.oci_path(&signed.manifest.digest, &signed.module, "signatures");
        let first: KeptSignatures = serde_json::from_slice(&fs::read(&path).expect("reads")).expect("as before");
        assert_eq!(first, KeptSignatures::at("registry://first/m".to_owned(), by("first", 0)));

        let earlier =
            json!({"places": ["registry://a/m", "registry://b/m"], "signatures": by("vendor", 0)}).to_string();
        fs::write(&path, &earlier).expect("writes");
        assert!(signed.keep("registry://b/m", by("vendor", 0), &Tenant::Cluster), "it is there");
        assert!(signed.keep("registry://c/m", by("vendor", 0), &Tenant::Cluster));
        for place in ["a", "b", "c"].map(|host| format!("registry://{host}/m")) {
            assert!(signed.is_proof(&place, &by("vendor", 0)), "{place}");
        }
        assert_eq!(fs::read_to_string(&path).expect("reads"), earlier);
        assert_eq!(signed.volume.signatures(&signed.manifest.digest, &signed.module).len(), 2);
    }
}

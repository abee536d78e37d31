//! The bill of materials of an image: the packages that are linked into its program, as CycloneDX 1.6.
//!
//! Format: <https://cyclonedx.org/docs/1.6/json/>. Names of packages are package URLs, <https://github.com/package-url/purl-spec>.

use serde_json::{Value, json};

use super::packages::{Key, Linked, Package};
use super::time;

/// The bill as JSON text. The same input gives the same bytes.
pub(super) fn make(linked: &Linked, epoch: u64) -> String {
    let mut metadata = json!({ "component": component(&linked.program, "application") });
    // A time of zero is left out.
    if epoch > 0 {
        metadata["timestamp"] = time::rfc3339(epoch).into();
    }
    let mut components: Vec<Value> = linked.packages.iter().map(|package| component(package, "library")).collect();
    components.extend(linked.system.iter().map(|(name, version)| generic(name, version)));
    let dependencies: Vec<Value> = [&linked.program].into_iter().chain(&linked.packages).map(dependency).collect();
    let bill = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": metadata,
        "components": components,
        "dependencies": dependencies,
    });
    format!("{bill:#}\n")
}

fn component(package: &Package, kind: &str) -> Value {
    let mut component = json!({
        "type": kind,
        "bom-ref": reference(&package.name, &package.version),
        "name": package.name,
        "version": package.version,
    });
    if let Some(description) = &package.description {
        component["description"] = description.trim().into();
    }
    if let Some(checksum) = &package.checksum {
        component["hashes"] = json!([{ "alg": "SHA-256", "content": checksum }]);
    }
    if let Some(license) = &package.license {
        // Old packages separate licences by a slash, for which SPDX has OR.
        let expression = license.replace(" OR ", "/").replace('/', " OR ");
        component["licenses"] = json!([{ "expression": expression }]);
    }
    if package.is_published {
        component["purl"] = format!("pkg:cargo/{}@{}", package.name, package.version).into();
    }
    component
}

fn generic(name: &str, version: &str) -> Value {
    json!({
        "type": "library",
        "bom-ref": reference(name, version),
        "name": name,
        "version": version,
        "purl": format!("pkg:generic/{name}@{}", version.replace('+', "%2B")),
    })
}

fn dependency(package: &Package) -> Value {
    let on: Vec<String> = package.dependencies.iter().map(|(name, version): &Key| reference(name, version)).collect();
    json!({ "ref": reference(&package.name, &package.version), "dependsOn": on })
}

fn reference(name: &str, version: &str) -> String {
    format!("{name}@{version}")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn linked() -> Linked {
        let serde = Package {
            name: "serde".to_owned(),
            version: "1.0.1".to_owned(),
            description: Some("A framework\n".to_owned()),
            license: Some("MIT/Apache-2.0".to_owned()),
            is_published: true,
            checksum: Some("abc".to_owned()),
            ..Package::default()
        };
        let program = Package {
            name: "portcullis-loader".to_owned(),
            version: "0.1.0".to_owned(),
            license: Some("Apache-2.0".to_owned()),
            dependencies: BTreeSet::from([("serde".to_owned(), "1.0.1".to_owned())]),
            ..Package::default()
        };
        Linked { program, packages: vec![serde], system: vec![("glibc", "2.36-9+deb12u14".to_owned())] }
    }

    fn bill(epoch: u64) -> Value {
        serde_json::from_str(&make(&linked(), epoch)).unwrap()
    }

    #[test]
    fn a_bill_names_the_program_and_all_that_is_in_it() {
        assert_eq!(
            bill(0),
            json!({
                "bomFormat": "CycloneDX",
                "specVersion": "1.6",
                "version": 1,
                "metadata": { "component": {
                    "type": "application",
                    "bom-ref": "portcullis-loader@0.1.0",
                    "name": "portcullis-loader",
                    "version": "0.1.0",
                    "licenses": [{ "expression": "Apache-2.0" }],
                } },
                "components": [
                    {
                        "type": "library",
                        "bom-ref": "serde@1.0.1",
                        "name": "serde",
                        "version": "1.0.1",
                        "description": "A framework",
                        "hashes": [{ "alg": "SHA-256", "content": "abc" }],
                        "licenses": [{ "expression": "MIT OR Apache-2.0" }],
                        "purl": "pkg:cargo/serde@1.0.1",
                    },
                    {
                        "type": "library",
                        "bom-ref": "glibc@2.36-9+deb12u14",
                        "name": "glibc",
                        "version": "2.36-9+deb12u14",
                        "purl": "pkg:generic/glibc@2.36-9%2Bdeb12u14",
                    },
                ],
                "dependencies": [
                    { "ref": "portcullis-loader@0.1.0", "dependsOn": ["serde@1.0.1"] },
                    { "ref": "serde@1.0.1", "dependsOn": [] },
                ],
            }),
        );
    }

    #[test]
    fn a_time_is_told_when_there_is_one() {
        assert_eq!(bill(86_400)["metadata"]["timestamp"], "1970-01-02T00:00:00Z");
    }
}

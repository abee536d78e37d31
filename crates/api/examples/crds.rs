//! Writes the CustomResourceDefinitions as YAML into a folder, one file a kind: `cargo xtask generate` runs it.
#![forbid(unsafe_code)]

use std::error::Error;
use std::path::Path;
use std::{env, fs};

const HEAD: &str = "# Made by `cargo xtask generate` from crates/api. Change the types there, not this file.\n";

fn main() -> Result<(), Box<dyn Error>> {
    let folder = env::args_os().nth(1).ok_or("want a folder to write to")?;
    fs::create_dir_all(&folder)?;
    for definition in portcullis_api::kubernetes::definitions() {
        let path = Path::new(&folder).join(format!("{}.yaml", definition.spec.names.plural));
        fs::write(path, format!("{HEAD}{}", serde_yaml_ng::to_string(&definition)?))?;
    }
    Ok(())
}

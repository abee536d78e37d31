//! Writes the CustomResourceDefinitions as YAML into a folder, one file a kind: `cargo xtask generate` runs it.
#![forbid(unsafe_code)]

use std::error::Error;
use std::path::Path;
use std::{env, fs};

use serde_json::Value;

const HEAD: &str = "# Made by `cargo xtask generate` from crates/api. Change the types there, not this file.\n";

fn main() -> Result<(), Box<dyn Error>> {
    let folder = env::args_os().nth(1).ok_or("want a folder to write to")?;
    fs::create_dir_all(&folder)?;
    for definition in portcullis_api::kubernetes::definitions() {
        let path = Path::new(&folder).join(format!("{}.yaml", definition.spec.names.plural));
        let mut value = serde_json::to_value(&definition)?;
        whole_numbers(&mut value);
        fs::write(path, format!("{HEAD}{}", portcullis_yaml::write(&value)?))?;
    }
    Ok(())
}

/// Writes 30.0 as 30: the type of a limit has a fraction, and no limit here.
fn whole_numbers(value: &mut Value) {
    match value {
        Value::Number(number) => {
            if let Some(whole) = number.as_f64().filter(|number| number.fract() == 0.0 && number.abs() < 1e9) {
                *value = (whole as i64).into();
            }
        }
        Value::Array(items) => items.iter_mut().for_each(whole_numbers),
        Value::Object(fields) => fields.values_mut().for_each(whole_numbers),
        _ => {}
    }
}

//! Writes modules that somebody might serve as a policy: `mutants FOLDER FIRST COUNT POLICY...` writes COUNT of them, from
//! `mutant-FIRST.wasm` on.
//!
//! Each module depends only on its number and on the given policies. It is a policy, or a random module of wasm-smith, with up to three
//! changes by wasm-mutate. Some are also cut or have flipped bits.

use std::path::Path;
use std::process::ExitCode;
use std::{env, fs};

use arbitrary::Unstructured;
use wasm_mutate::WasmMutate;
use wasm_smith::{Config, Module};

/// How hard wasm-mutate looks for a change.
const FUEL: u64 = 1000;
/// The largest module, in bytes. Larger ones are cut to this size, as they would only take long to compile.
const LARGEST: usize = 64 << 10;

fn main() -> ExitCode {
    let args: Vec<_> = env::args().skip(1).collect();
    let [folder, first, count, policies @ ..] = &args[..] else { return usage() };
    let (Ok(first), Ok(count)) = (first.parse::<u64>(), count.parse::<u64>()) else { return usage() };
    let policies: Result<Vec<_>, _> = policies.iter().map(fs::read).collect();
    let policies = match policies {
        Ok(policies) if !policies.is_empty() => policies,
        _ => return usage(),
    };
    for number in first..first.saturating_add(count) {
        let path = Path::new(folder).join(format!("mutant-{number}.wasm"));
        if let Err(error) = fs::write(&path, mutant(number, &policies)) {
            eprintln!("failed to write {}: {error}", path.display());
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn usage() -> ExitCode {
    eprintln!("usage: mutants FOLDER FIRST COUNT POLICY...; the policies are files of modules");
    ExitCode::from(64)
}

fn mutant(number: u64, policies: &[Vec<u8>]) -> Vec<u8> {
    let mut random = Random::new(number);
    let mut module = match random.below(4) {
        0 => random.module(),
        _ => policies[random.below(policies.len())].clone(),
    };
    for _ in 0..random.below(4) {
        module = changed(&module, random.next()).unwrap_or(module);
    }
    match random.below(4) {
        0 => module.truncate(random.below(module.len())),
        1 => random.flip_bits(&mut module),
        _ => {}
    }
    module.truncate(LARGEST);
    module
}

/// The module after one change, if wasm-mutate finds one.
fn changed(module: &[u8], seed: u64) -> Option<Vec<u8>> {
    let mut mutate = WasmMutate::default();
    mutate.seed(seed).fuel(FUEL).preserve_semantics(false);
    mutate.run(module).ok()?.next()?.ok()
}

/// A generator of random numbers (SplitMix64) that are the same on every machine.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit`; 0 if that is 0.
    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }

    /// A valid module of wasm-smith.
    fn module(&mut self) -> Vec<u8> {
        let bytes: Vec<u8> = (0..256).flat_map(|_| self.next().to_le_bytes()).collect();
        let module = Module::new(Config::default(), &mut Unstructured::new(&bytes));
        module.map(|module| module.to_bytes()).unwrap_or_default()
    }

    fn flip_bits(&mut self, module: &mut [u8]) {
        for _ in 0..=self.below(8) {
            let at = self.below(module.len());
            if let Some(byte) = module.get_mut(at) {
                *byte ^= 1 << self.below(8);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A module with a function that adds.
    const POLICY: &[u8] = b"\0asm\x01\0\0\0\x01\x07\x01\x60\x02\x7f\x7f\x01\x7f\x03\x02\x01\0\x07\x05\x01\x01f\0\0\x0a\x09\x01\x07\0\x20\0\x20\x01\x6a\x0b";

    #[test]
    fn a_number_is_always_the_same_mutant() {
        let all = || (0..100).map(|number| mutant(number, &[POLICY.to_vec()])).collect::<Vec<_>>();
        let (once, twice) = (all(), all());
        assert_eq!(once, twice);
        let unchanged = once.iter().filter(|module| **module == POLICY).count();
        assert!(unchanged < 50, "{unchanged} are as they were");
        let whole = once.iter().filter(|module| module.starts_with(&POLICY[..8])).count();
        assert!(whole > 50, "{whole} look like modules");
    }
}

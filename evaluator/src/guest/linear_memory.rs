//! Reading and writing a guest's memory, with every pointer taken as hostile.

use wasmtime::{Caller, Extern, Memory};

use super::{CallError, Context};

/// A pointer and a length that do not lie inside the guest's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OutOfBounds;

/// The guest's memory and the host's context, side by side.
pub(super) fn parts<'a>(caller: &'a mut Caller<'_, Context>) -> wasmtime::Result<(&'a mut [u8], &'a mut Context)> {
    let memory = exported(caller)?;
    Ok(memory.data_and_store_mut(caller))
}

/// The memory that the guest exports.
pub(super) fn exported(caller: &mut Caller<'_, Context>) -> wasmtime::Result<Memory> {
    if let Some(memory) = caller.data().memory {
        return Ok(memory);
    }
    // A module's start function may call the host before the instance is known here.
    match caller.get_export("memory") {
        Some(Extern::Memory(memory)) => Ok(memory),
        _ => Err(wasmtime::Error::new(CallError::Trap("the guest exports no memory".to_owned()))),
    }
}

/// `len` bytes from `ptr` on.
pub(super) fn slice(memory: &[u8], ptr: i32, len: i32) -> Result<&[u8], OutOfBounds> {
    let start = index(ptr);
    memory.get(start..start + index(len)).ok_or(OutOfBounds)
}

/// `len` bytes from `ptr` on, to be written.
pub(super) fn slice_mut(memory: &mut [u8], ptr: i32, len: usize) -> Result<&mut [u8], OutOfBounds> {
    let start = index(ptr);
    memory.get_mut(start..start.saturating_add(len)).ok_or(OutOfBounds)
}

/// Writes `bytes` from `ptr` on.
pub(super) fn write(memory: &mut [u8], ptr: i32, bytes: &[u8]) -> Result<(), OutOfBounds> {
    slice_mut(memory, ptr, bytes.len())?.copy_from_slice(bytes);
    Ok(())
}

/// Writes a number in little-endian order, as WebAssembly has it in memory.
pub(super) fn write_u32(memory: &mut [u8], ptr: i32, value: u32) -> Result<(), OutOfBounds> {
    write(memory, ptr, &value.to_le_bytes())
}

/// Reads a number in little-endian order.
pub(super) fn read_u32(memory: &[u8], ptr: i32, offset: usize) -> Result<u32, OutOfBounds> {
    let start = index(ptr).saturating_add(offset);
    let bytes = memory.get(start..start.saturating_add(4)).ok_or(OutOfBounds)?;
    bytes.try_into().map(u32::from_le_bytes).map_err(|_| OutOfBounds)
}

/// A guest's 32-bit pointer or length as an index; never negative, whatever the guest means.
pub(super) fn index(value: i32) -> usize {
    usize::try_from(value.cast_unsigned()).expect("a usize has 32 bits at least")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_wholly_inside_is_refused() {
        let mut memory = [0; 8];
        assert_eq!(slice(&memory, 0, 8).map(<[u8]>::len), Ok(8));
        for (ptr, len) in [(0, 9), (8, 1), (-1, 1), (0, -1), (-1, -1), (i32::MAX, i32::MAX)] {
            assert_eq!(slice(&memory, ptr, len), Err(OutOfBounds), "{ptr} {len}");
        }
        assert_eq!(write(&mut memory, 7, b"ab"), Err(OutOfBounds));
        assert_eq!(read_u32(&memory, 5, 0), Err(OutOfBounds));
        assert_eq!(read_u32(&memory, -1, 4), Err(OutOfBounds));
    }
}

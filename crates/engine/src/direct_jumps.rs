//! Lets functions that Go compiled jump where they go, instead of through one table.
//!
//! WebAssembly has no jump to a place of the program's choice, so Go writes each function as a loop around all of its basic blocks. Its
//! parameter says with which one to begin, since a function that waited for another goroutine is called again to go on where it was. Each jump
//! within the function sets that parameter, goes back to the head of the loop, and is sent on from there by a table:
//!
//! ```wat
//! (loop $go
//!   (block $2 (block $1 (block $0
//!     (br_table $0 $1 $2 (local.get $pc)))
//!     ;; basic block 0
//!     (local.set $pc (i32.const 2)) (br $go))
//!     ;; basic block 1
//!     (local.set $pc (i32.const 0)) (br $go))
//!   ;; basic block 2
//! )
//! ```
//!
//! So the compiler sees one loop, in which anything may follow anything, and each jump costs an indirect one and a check of the epoch. In a
//! rewritten function a jump forward leaves the wasm block that ends where its target begins: `(br $2)` above. A jump back makes a loop of the
//! basic blocks from its target to itself, and continues it. Entered elsewhere than at its first basic block, such a loop goes on by a table at
//! its head. The function still begins with any basic block, as before.
//!
//! But for those that jump, the same instructions run in the same order. Any function of this form is rewritten, whether Go has written it or
//! not, and others stay as they are. `$pc` is read in two places only. One is right behind a constant, by which Go keeps the function that it
//! is about to call. The other is the head of the function and of a loop, and on each way there it was set to a basic block of that loop: by
//! each jump, and at the end of the basic block before; and tables lead only to where a value belongs. A function that reads it elsewhere stays
//! as it is.

mod body;
mod loops;
#[cfg(test)]
mod tests;

use std::convert::Infallible;

use wasm_encoder::reencode::{self, Reencode};
use wasm_encoder::{BlockType, CodeSection, Encode as _, Instruction, Module};
use wasmparser::{FunctionBody, Parser};

use self::body::{Body, Change, Kind, PC};
use self::loops::{Loop, Loops};

/// The most entries that the tables of the loops may have together, for each entry of the table that Go wrote. Go's own functions stay far
/// below; a module made for it would otherwise have an artifact that is larger than itself by the depth of its loops.
const MOST_ENTRIES: usize = 8;

/// A module whose functions jump directly where that is possible. `None` if no function can.
///
/// The module must be valid.
pub(crate) fn with_direct_jumps(module: &[u8]) -> Option<Vec<u8>> {
    let mut rewriting = Rewriting { module, is_changed: false };
    let mut rewritten = Module::new();
    rewriting.parse_core_module(&mut rewritten, Parser::new(0), module).ok()?;
    rewriting.is_changed.then(|| rewritten.finish())
}

struct Rewriting<'a> {
    module: &'a [u8],
    is_changed: bool,
}

impl Reencode for Rewriting<'_> {
    type Error = Infallible;

    fn parse_function_body(
        &mut self,
        code: &mut CodeSection,
        function: FunctionBody<'_>,
    ) -> Result<(), reencode::Error<Infallible>> {
        let direct = rewritten(self.module, &function);
        self.is_changed |= direct.is_some();
        code.raw(direct.as_deref().unwrap_or(function.as_bytes()));
        Ok(())
    }
}

/// The bytes of a function that jumps directly: declarations of locals and code. `None` if it is not as Go writes functions that jump.
fn rewritten(module: &[u8], function: &FunctionBody<'_>) -> Option<Vec<u8>> {
    let body = Body::read(function)?;
    let jumps = body.jumps()?;
    let loops = Loops::of(&jumps, body.count)?;
    let entries: usize = loops.all().map(|it| body.values(it.first, it.last).len()).sum();
    if jumps.is_empty() || entries > MOST_ENTRIES * body.table().len() {
        return None;
    }
    let mut output = Output {
        bytes: module.get(body.prologue.clone())?.to_vec(),
        open: 0,
        starts: vec![0; body.count],
        heads: vec![0; body.count],
        body: &body,
        loops: &loops,
    };
    output.write(module)?;
    Some(output.bytes)
}

/// The code of a function as far as it is written.
struct Output<'a> {
    bytes: Vec<u8>,
    /// The number of wasm blocks that are open, without those within a basic block.
    open: usize,
    /// A nesting depth for each basic block: the number of wasm blocks outside the one that ends where it starts.
    starts: Vec<usize>,
    /// A nesting depth for each basic block: the number of wasm blocks outside the loop whose first basic block it is.
    heads: Vec<usize>,
    body: &'a Body<'a>,
    loops: &'a Loops,
}

impl Output<'_> {
    /// Writes all that follows the prologue.
    fn write(&mut self, module: &[u8]) -> Option<()> {
        if self.body.has_exit {
            self.open_block();
        }
        self.function_head()?;
        let mut changes = self.body.changes();
        let (mut copied, mut block) = (changes.position(), 0);
        self.enter(block)?;
        loop {
            let Change { kind, depth, bytes } = changes.next()?;
            self.bytes.extend_from_slice(module.get(copied..bytes.start)?);
            copied = bytes.end;
            match kind {
                Kind::Jump(to) => self.jump(block, to, depth)?,
                Kind::Exit { is_conditional } => {
                    let label = self.label(0, depth)?;
                    self.put(&if is_conditional { Instruction::BrIf(label) } else { Instruction::Br(label) });
                }
                Kind::NextBlock => {
                    self.leave(block);
                    block += 1;
                    if self.loops.starting_at(block).is_some_and(Loop::has_table) {
                        self.set_pc(block)?;
                    }
                    self.end();
                    self.enter(block)?;
                }
                Kind::End => {
                    self.leave(block);
                    self.bytes.extend_from_slice(module.get(copied..self.body.end)?);
                    return Some(());
                }
            }
        }
    }

    /// The head of the function, which begins with the basic block that the parameter says: mostly the first.
    fn function_head(&mut self) -> Option<()> {
        let blocks = self.loops.outermost(0, self.body.count - 1);
        self.open_blocks(&blocks);
        if self.body.value(0) == Some(0) {
            self.put(&Instruction::LocalGet(PC));
            self.put(&Instruction::I32Eqz);
            let first = self.label(self.starts[0], 0)?;
            self.put(&Instruction::BrIf(first));
        }
        self.put(&Instruction::LocalGet(PC));
        let default = self.start(&blocks, self.body.count - 1)?;
        let labels = labels(self.body.table(), |block| self.start(&blocks, block))?;
        self.table(labels, default);
        Some(())
    }

    /// The head of the loop that begins with a basic block, if one does: its table leads to its other basic blocks.
    fn enter(&mut self, block: usize) -> Option<()> {
        let Some(entered) = self.loops.starting_at(block) else { return Some(()) };
        let Loop { first, last } = entered;
        self.heads[first] = self.open;
        self.put(&Instruction::Loop(BlockType::Empty));
        self.open += 1;
        if !entered.has_table() {
            return Some(());
        }
        let blocks = self.loops.outermost(first + 1, last);
        self.open_blocks(&blocks);
        // Continues with the first basic block.
        let here = self.open;
        self.open_block();
        let pc = self.body.value(first)?;
        self.put(&Instruction::LocalGet(PC));
        self.put(&Instruction::I32Const(pc));
        self.put(&Instruction::I32Eq);
        let first_label = self.label(here, 0)?;
        self.put(&Instruction::BrIf(first_label));
        self.put(&Instruction::LocalGet(PC));
        self.put(&Instruction::I32Const(pc));
        self.put(&Instruction::I32Sub);
        let label = |block: usize| if block == first { Some(first_label) } else { self.start(&blocks, block) };
        // Values beyond Go's table mean the last basic block. No others come here.
        let default = label(if last + 1 == self.body.count { last } else { first })?;
        let labels = labels(self.body.table().get(self.body.values(first, last))?, label)?;
        self.table(labels, default);
        Some(())
    }

    /// A branch by the value on the stack, and the end of the wasm block that it is in.
    fn table(&mut self, labels: Vec<u32>, default: u32) {
        self.put(&Instruction::BrTable(labels.into(), default));
        self.end();
    }

    /// The ends of the loops that end with a basic block.
    fn leave(&mut self, block: usize) {
        for _ in 0..self.loops.ending_at(block) {
            self.end();
        }
    }

    /// A jump from one basic block to another, from within some wasm blocks.
    fn jump(&mut self, from: usize, to: usize, depth: usize) -> Option<()> {
        let outside = if to <= from {
            // Back to the head of a loop that it is in.
            if self.loops.starting_at(to)?.has_table() {
                self.set_pc(to)?;
            }
            self.heads[to]
        } else if let Some(entered) = self.loops.largest_with(to, from) {
            // Into a loop from outside, whose head reads `$pc`.
            if entered.has_table() {
                self.set_pc(to)?;
            }
            self.starts[entered.first]
        } else {
            // Forward, and into no loop that it is not in: nobody reads `$pc` there before it is set again.
            self.starts[to]
        };
        let label = self.label(outside, depth)?;
        self.put(&Instruction::Br(label));
        Some(())
    }

    /// Tells the head of a loop with which basic block to go on.
    fn set_pc(&mut self, block: usize) -> Option<()> {
        let pc = self.body.value(block)?;
        self.put(&Instruction::I32Const(pc));
        self.put(&Instruction::LocalSet(PC));
        Some(())
    }

    /// Opens the wasm blocks that end where these basic blocks start.
    fn open_blocks(&mut self, blocks: &[usize]) {
        for block in blocks.iter().rev() {
            self.starts[*block] = self.open;
            self.open_block();
        }
    }

    /// The label at the start of a basic block, or of the loop that contains it, where wasm blocks for these are open.
    fn start(&self, blocks: &[usize], block: usize) -> Option<u32> {
        let at = blocks.partition_point(|start| *start <= block).checked_sub(1)?;
        self.label(self.starts[blocks[at]], 0)
    }

    /// The label of the wasm block with this many outside it, from within `depth` wasm blocks of a basic block.
    fn label(&self, outside: usize, depth: usize) -> Option<u32> {
        (self.open + depth).checked_sub(outside + 1).and_then(|label| u32::try_from(label).ok())
    }

    fn open_block(&mut self) {
        self.put(&Instruction::Block(BlockType::Empty));
        self.open += 1;
    }

    fn end(&mut self) {
        self.put(&Instruction::End);
        self.open -= 1;
    }

    fn put(&mut self, instruction: &Instruction<'_>) {
        instruction.encode(&mut self.bytes);
    }
}

/// The labels for entries of the table that Go wrote.
fn labels(entries: &[u32], label: impl Fn(usize) -> Option<u32>) -> Option<Vec<u32>> {
    entries.iter().map(|block| label(*block as usize)).collect()
}

//! What Go makes of a function that jumps, and which jumps it has.

use std::ops::Range;

use wasmparser::{BlockType, FunctionBody, Operator, OperatorsReader};

/// The index of the parameter that says with which basic block to begin. Go calls it `PC_B`.
pub(super) const PC: u32 = 0;

/// A function as Go writes it: a wasm block that ends where it gives way to another goroutine, unless it never does; in that the loop, whose
/// head sends on by a table; and in that the basic blocks, each behind the end of a wasm block of its own.
pub(super) struct Body<'a> {
    /// Reads on behind the table.
    code: OperatorsReader<'a>,
    /// What comes before the first wasm block, from the declarations of locals on, in bytes of the module.
    pub(super) prologue: Range<usize>,
    /// Where the function ends in the module.
    pub(super) end: usize,
    /// Whether there is a wasm block around the loop.
    pub(super) has_exit: bool,
    /// The basic block for each value of the parameter, in ascending order. Other values mean the last one.
    table: Vec<u32>,
    /// The number of basic blocks.
    pub(super) count: usize,
}

/// A jump within the function: the basic blocks where it is and to which it leads.
#[derive(Clone, Copy, Debug)]
pub(super) struct Jump {
    pub(super) from: usize,
    pub(super) to: usize,
}

impl<'a> Body<'a> {
    /// `None` for a function that is not as Go writes those that jump.
    pub(super) fn read(function: &FunctionBody<'a>) -> Option<Self> {
        let mut code = function.get_operators_reader().ok()?;
        let (mut operator, mut prologue_end) = read(&mut code)?;
        // The pointer to Go's stack is kept in a local.
        while matches!(operator, Operator::GlobalGet { .. } | Operator::LocalSet { local_index: 1.. }) {
            (operator, prologue_end) = read(&mut code)?;
        }
        let has_exit = is_block(&operator);
        if has_exit {
            (operator, _) = read(&mut code)?;
        }
        let Operator::Loop { blockty: BlockType::Empty } = operator else { return None };
        let mut count = 0;
        loop {
            (operator, _) = read(&mut code)?;
            if !is_block(&operator) {
                break;
            }
            count += 1;
        }
        let Operator::LocalGet { local_index: PC } = operator else { return None };
        let (Operator::BrTable { targets }, _) = read(&mut code)? else { return None };
        let (Operator::End, _) = read(&mut code)? else { return None };
        let table = targets.targets().collect::<Result<Vec<_>, _>>().ok()?;
        let last = u32::try_from(count).ok()?.checked_sub(1)?;
        if targets.default() != last || !table.is_sorted() || table.last().is_some_and(|highest| *highest > last) {
            return None;
        }
        let Range { start, end } = function.range();
        Some(Self { code, prologue: start..prologue_end, end, has_exit, table, count })
    }

    /// The basic block that a value of the parameter means.
    fn basic_block_of(&self, pc: i32) -> usize {
        let entry = usize::try_from(pc.cast_unsigned()).ok().and_then(|pc| self.table.get(pc));
        entry.map_or(self.count - 1, |block| *block as usize)
    }

    /// The entries of the table.
    pub(super) fn table(&self) -> &[u32] {
        &self.table
    }

    /// The indexes of the entries for these basic blocks.
    pub(super) fn values(&self, first: usize, last: usize) -> Range<usize> {
        let below = |limit: usize| self.table.partition_point(|block| (*block as usize) < limit);
        below(first)..below(last + 1)
    }

    /// A value of the parameter that means this basic block. `None` if it has none.
    pub(super) fn value(&self, block: usize) -> Option<i32> {
        let values = self.values(block, block);
        let is_known = !values.is_empty() || block + 1 == self.count;
        is_known.then_some(values.start).and_then(|value| i32::try_from(value).ok())
    }

    /// All jumps. `None` if the function does something with its basic blocks or its parameter that Go does not.
    pub(super) fn jumps(&self) -> Option<Vec<Jump>> {
        let mut changes = self.changes();
        let (mut jumps, mut from) = (Vec::new(), 0);
        loop {
            match changes.next()?.kind {
                Kind::Jump(to) => jumps.push(Jump { from, to }),
                Kind::Exit { .. } => {}
                Kind::NextBlock => from += 1,
                Kind::End => break,
            }
        }
        while !changes.code.eof() {
            if reads_pc(&changes.code.read().ok()?) {
                return None;
            }
        }
        Some(jumps)
    }

    /// What a rewritten function does in another way, in the order of the code.
    pub(super) fn changes(&self) -> Changes<'_> {
        Changes { code: self.code.clone(), body: self, previous: [None, None], depth: 0, block: 0 }
    }
}

fn read<'a>(code: &mut OperatorsReader<'a>) -> Option<(Operator<'a>, usize)> {
    let start = code.original_position();
    Some((code.read().ok()?, start))
}

fn is_block(operator: &Operator<'_>) -> bool {
    matches!(operator, Operator::Block { blockty: BlockType::Empty })
}

fn reads_pc(operator: &Operator<'_>) -> bool {
    matches!(operator, Operator::LocalGet { local_index: PC } | Operator::LocalTee { local_index: PC })
}

/// A part of the code that a rewritten function has in another form.
pub(super) struct Change {
    pub(super) kind: Kind,
    /// The number of wasm blocks around it within its basic block.
    pub(super) depth: usize,
    /// Its bytes in the module.
    pub(super) bytes: Range<usize>,
}

/// What such a part does.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    /// A jump to the basic block with this number.
    Jump(usize),
    /// A branch to the end of the wasm block around the loop.
    Exit { is_conditional: bool },
    /// One basic block ends and the next one begins.
    NextBlock,
    /// The loop ends, and with it the last basic block.
    End,
}

/// Reads the code behind the table.
pub(super) struct Changes<'a> {
    code: OperatorsReader<'a>,
    body: &'a Body<'a>,
    /// The two instructions before, and where they begin.
    previous: [Option<(Operator<'a>, usize)>; 2],
    depth: usize,
    block: usize,
}

impl Changes<'_> {
    /// How far the code is read, in bytes of the module.
    pub(super) fn position(&self) -> usize {
        self.code.original_position()
    }

    /// The next change; the last one is the end. `None` for what Go does not write.
    pub(super) fn next(&mut self) -> Option<Change> {
        loop {
            let (operator, start) = read(&mut self.code)?;
            let end = self.code.original_position();
            let change = match &operator {
                Operator::Block { .. } | Operator::Loop { .. } | Operator::If { .. } => {
                    self.depth += 1;
                    None
                }
                Operator::End if self.depth > 0 => {
                    self.depth -= 1;
                    None
                }
                Operator::End if self.block + 1 < self.body.count => {
                    self.block += 1;
                    Some((Kind::NextBlock, start))
                }
                Operator::End => Some((Kind::End, start)),
                // Go also keeps the function there that it is about to call.
                Operator::LocalGet { local_index: PC }
                    if matches!(
                        self.previous,
                        [Some((Operator::LocalSet { local_index: PC }, _)), Some((Operator::I32Const { .. }, _))]
                    ) =>
                {
                    None
                }
                operator if reads_pc(operator) => return None,
                operator => self.branch(operator, start)?,
            };
            let depth = self.depth;
            let [_, before] = std::mem::take(&mut self.previous);
            self.previous = [before, Some((operator, start))];
            if let Some((kind, start)) = change {
                return Some(Change { kind, depth, bytes: start..end });
            }
        }
    }

    /// How a branch changes, and where it begins; nothing for one within its basic block and for what is no branch. `None` for a branch that Go
    /// does not write.
    fn branch(&self, operator: &Operator<'_>, start: usize) -> Option<Option<(Kind, usize)>> {
        // How many labels the loop that Go wrote is away, and the wasm block around it.
        let go = self.depth + self.body.count - 1 - self.block;
        let exit = self.body.has_exit.then_some(go + 1);
        let is_within = |label: u32| (label as usize) < self.depth;
        match operator {
            Operator::Br { relative_depth: label } | Operator::BrIf { relative_depth: label } if is_within(*label) => {
                Some(None)
            }
            Operator::Br { relative_depth: label } if *label as usize == go => match self.previous {
                [Some((Operator::I32Const { value }, start)), Some((Operator::LocalSet { local_index: PC }, _))] => {
                    Some(Some((Kind::Jump(self.body.basic_block_of(value)), start)))
                }
                _ => None,
            },
            Operator::Br { relative_depth: label } | Operator::BrIf { relative_depth: label } => {
                let is_conditional = matches!(operator, Operator::BrIf { .. });
                (Some(*label as usize) == exit).then_some(Some((Kind::Exit { is_conditional }, start)))
            }
            Operator::BrTable { targets } => {
                let mut labels = targets.targets().chain([Ok(targets.default())]);
                labels.all(|label| label.is_ok_and(is_within)).then_some(None)
            }
            Operator::BrOnNull { .. } | Operator::BrOnNonNull { .. } => None,
            _ => Some(None),
        }
    }
}

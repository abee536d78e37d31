//! An instance begins with the memory that its module describes, whatever the one before it in the same slot wrote.

use portcullis_engine::{LEAST_KEPT, MOST_KEPT, RunLimits, RunningEngine, finds_written_pages};
use portcullis_testkit::skip;
use wasmtime::{Instance, Module, Store};

const PAGE: usize = 64 << 10;
/// The address of the module's data, and the data.
const DATA: (usize, &[u8]) = (2 * PAGE + 100, b"as the module has it");

/// A module with a memory of 96 pages (6 MiB), more than is ever kept, and a function that writes `length` bytes every `step` bytes.
const GUEST: &str = r#"(module
    (memory (export "memory") 96 2000)
    (data (i32.const 131172) "as the module has it")
    (global $used (mut i32) (i32.const 7))
    (func (export "used") (result i32) global.get $used)
    (func (export "grow") (param i32) (result i32) (memory.grow (local.get 0)))
    (func (export "fill") (param $step i32) (param $length i32) (local $at i32)
        (global.set $used (i32.const 8))
        (loop $next
            (memory.fill (local.get $at) (i32.const 0xab) (local.get $length))
            (local.set $at (i32.add (local.get $at) (local.get $step)))
            (br_if $next (i32.le_u (i32.add (local.get $at) (local.get $length))
                (i32.mul (memory.size) (i32.const 65536)))))))"#;

/// What an instance leaves behind: steps, length of each, and pages by which it grows first.
const LEFT_BEHIND: [(i32, i32, i32); 7] = [
    // The whole memory, at its first size and grown.
    (1 << 16, 1 << 16, 0),
    (1 << 16, 1 << 16, 300),
    // More single pages than one scan gives, all over the memory.
    (3 << 12, 1, 0),
    (3 << 12, 1, 64),
    // A few pages.
    (1 << 20, 1, 0),
    // The beginning and the end.
    (6 << 20, 5, 0),
    ((6 << 20) - 8, 8, 0),
];

#[test]
fn what_one_instance_wrote_is_never_seen_by_the_next() {
    if !finds_written_pages() {
        skip("in part, as this kernel does not tell which pages were written: only the way without that is tried");
    }
    for kept_bytes in [0, LEAST_KEPT, (1 << 20) + 4096, MOST_KEPT] {
        // One slot, so that all instances follow one another in it.
        let limits = RunLimits { instances: 1, kept_bytes, ..RunLimits::default() };
        let engine = RunningEngine::new(limits).unwrap();
        let compile = |text: &str| Module::new(engine.engine(), wat::parse_str(text).unwrap()).unwrap();
        let guest = compile(GUEST);
        let other = GUEST.replace("as the module has it", "as another one has it").replace("96 2000", "40 2000");
        let other = compile(&other);
        for round in 0..6 {
            for (step, length, pages) in LEFT_BEHIND {
                let module = if (round + pages) % 3 == 2 { &other } else { &guest };
                let mut store = Store::new(engine.engine(), ());
                store.set_epoch_deadline(1 << 40);
                let instance = Instance::new(&mut store, module, &[]).unwrap();
                if std::ptr::eq(module, &raw const guest) {
                    assert_clean(&instance, &mut store, &format!("{kept_bytes} kept, round {round}"));
                }
                let grow = instance.get_typed_func::<i32, i32>(&mut store, "grow").unwrap();
                assert!(grow.call(&mut store, pages).unwrap() >= 0);
                let grown = instance.get_memory(&mut store, "memory").unwrap();
                let begin = if pages == 0 { grown.data_size(&store) } else { 96 * PAGE };
                assert!(is_zero(&grown.data(&store)[begin.min(grown.data_size(&store))..]));
                let fill = instance.get_typed_func::<(i32, i32), ()>(&mut store, "fill").unwrap();
                fill.call(&mut store, (step, length)).unwrap();
            }
        }
    }
}

fn assert_clean(instance: &Instance, store: &mut Store<()>, when: &str) {
    let used = instance.get_typed_func::<(), i32>(&mut *store, "used").unwrap();
    assert_eq!(used.call(&mut *store, ()).unwrap(), 7, "{when}");
    let memory = instance.get_memory(&mut *store, "memory").unwrap();
    let data = memory.data(&store);
    let (at, expected) = DATA;
    assert_eq!(data.len(), 96 * PAGE, "{when}");
    assert_eq!(&data[at..at + expected.len()], expected, "{when}");
    assert!(is_zero(&data[..at]) && is_zero(&data[at + expected.len()..]), "{when}");
}

/// Whether all bytes are zero. They are compared page by page, as comparing single bytes takes long without optimisation.
fn is_zero(bytes: &[u8]) -> bool {
    bytes.chunks(PAGE).all(|part| *part == [0; PAGE][..part.len()])
}

//! The fault catalogue, one module a section. A test is named after its row.
#![forbid(unsafe_code)]

mod abuse;
mod clock;
mod compiling;
mod fetching;
mod fetching_slowly;
mod floods;
mod groups;
mod hostile;
mod http;
mod http_certificate;
mod http_clients;
mod http_connections;
mod http_requests;
mod http_tls;
mod identities;
mod logins;
mod modules_call;
mod modules_load;
mod new_policies;
mod policy_paths;
mod process_calls;
mod process_end;
mod process_swaps;
mod redirects;
mod registries;
mod resolving;
mod settings;
mod sharing;
mod siblings;
mod signatures;
mod slow_modules;
mod storms;
mod trusting;
mod turns;
mod verdicts;
mod volume_evaluator;
mod volume_loader;

use portcullis_tests::{rows_without_a_test, stale_lines};

/// The rows that the product should withstand by now.
const ROWS: &[&str] = &[
    "L01", "L02", "L03", "L04", "L05", "L06", "L07", "L08", "L09", "L10", "L11", "L12", "L13", "L14", "L15", "L16",
    "L17", "L18", "L19", "L20", "L21", "L22", "L23", "L24", "L25", "L26", "L27", // Fetching
    "M01", "M02", "M03", "M04", "M05", "M06", "M07", "M08", "M09", "M11", "M12", "M13", "M15", "M16", "M17", "M18",
    "M20", "M21", "M22", "M23", "M24", "M25", "M26", "M28", // Modules
    "S01", "S02", "S04", "S05", "S06", // Settings
    "V01", "V02", "V03", "V04", "V05", "V06", "V07", "V08", "V09", "V10", "V11", "V12", "V13", "V14", "V15", "V16",
    "V17", "V18", "V19", "V20", "V21", "V22", // Shared volume
    "E01", "E02", "E03", "E04", "E07", "E08", "E09", "E10", "E11", "E12", "E13", "E14", "E15", "E16", "E17", "E18",
    // Evaluator process
    "H01", "H02", "H03", "H04", "H05", "H06", "H07", "H08", "H09", "H10", "H11", "H12", "H13", "H15", "H16", "H17",
    "H19", "H20", "H21", "H22", // HTTP and TLS
    "W13", "W15", // Match groups
    "X01", "X02", "X05", // Abuse
    "Z01", "Z02", "Z03", "Z04", "Z05", "Z06", "Z09", "Z13", "Z14", "Z19", "Z20", // Floods and tenants
];

#[test]
fn every_row_has_a_test_or_a_reason() {
    assert_eq!(rows_without_a_test(ROWS), [""; 0], "write a test fault_<row>_…, or say why not in faults/untested.txt");
    assert_eq!(stale_lines(), [""; 0], "these lines of faults/untested.txt have no reason, or a test");
}

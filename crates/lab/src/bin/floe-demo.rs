//! `make demo`: the demonstration of `floe demo` in a program that is built in half the time.

use std::process::ExitCode;

use floe_lab::demo;

fn main() -> ExitCode {
    println!("{}\n", demo::introduction());
    match demo::run(|_| ()) {
        Ok(rows) => {
            println!("{}", demo::text(&rows));
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("floe-demo: {error}");
            ExitCode::FAILURE
        }
    }
}

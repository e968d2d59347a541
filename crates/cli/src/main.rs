//! The `floe` program; see the library `floe_cli`.

fn main() -> std::process::ExitCode {
    floe_cli::run()
}

//! The `drumlin` command. What it does is in the library beside it, so that fuzzing can reach it.

fn main() -> std::process::ExitCode {
    drumlin_cli::main()
}

//! Damages an image: `mutate IMAGE SEED OUT`. Equal seeds give equal results.

use std::process::ExitCode;

use redwarfs_testkit::mutate::{self, Parts, Rng};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [input, seed, output] = arguments.as_slice() else {
        eprintln!("usage: mutate IMAGE SEED OUT");
        return ExitCode::FAILURE;
    };
    match damage(input, seed, output) {
        Ok(what) => {
            println!("{output}: {what}");
            ExitCode::SUCCESS
        }
        Err(text) => {
            eprintln!("mutate: {text}");
            ExitCode::FAILURE
        }
    }
}

fn damage(input: &str, seed: &str, output: &str) -> Result<&'static str, String> {
    let seed = seed.parse().map_err(|e| format!("seed: {seed}: {e}"))?;
    let image = std::fs::read(input).map_err(|e| format!("{input}: {e}"))?;
    let parts = Parts::try_of(&image).ok_or(format!("{input}: not an intact image"))?;
    let (image, what) = mutate::image(&parts, &mut Rng::new(seed));
    std::fs::write(output, image).map_err(|e| format!("{output}: {e}"))?;
    Ok(what)
}

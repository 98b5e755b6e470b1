"""Set the course up and run it. One file, standard library only.

    python3 course.py lab      install what JupyterLab needs, fetch the chat model, open notebooks/
    python3 course.py test     the same for the tests, then run them and return their exit status
    python3 course.py doctor   report what this machine has; installs nothing
    python3 course.py COMMAND  chat, generate, serve, grade, bench, fetch: the `course` command; each has a --help

The packages go into .venv beside this file. A stamp in .venv makes every later start immediate and offline; it is
written last, so an interrupted set-up continues on the next run.
"""

import csv
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

# The file parses on older versions too, so that the sentence can be read there. torch 2.13 has no build for 3.15.
if not (3, 11) <= sys.version_info < (3, 15):
    sys.exit(
        "The course runs on Python 3.11 to 3.14 and this is Python {}.{}: install one of those and start the course "
        "with it, for example `python3.13 course.py lab`.".format(*sys.version_info[:2])
    )

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
WINDOWS = os.name == "nt"
BIN = VENV / ("Scripts" if WINDOWS else "bin")
PYTHON = BIN / ("python.exe" if WINDOWS else "python")
COURSE = BIN / ("course.exe" if WINDOWS else "course")
STAMP = VENV / "course-stamp.json"
UNFINISHED = VENV / "course-unfinished"  # there while an installer runs, so that a killed one is noticed
NVIDIA_GPUS = Path("/proc/driver/nvidia/gpus")
PYTEST = ["-n", "2", "--dist", "loadfile"]
# The venv's own kernel wins over a `python3` kernel in the user's home.
JUPYTER_ENVIRONMENT = {"JUPYTER_PREFER_ENV_PATH": "1"}


def main(arguments):
    command, rest = (arguments[0], arguments[1:]) if arguments else ("help", [])
    if command in ("help", "-h", "--help"):
        print(__doc__)
    elif command == "doctor":
        # Needs nothing but the standard library, so it also works before and during set-up.
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        become([PYTHON if PYTHON.exists() else sys.executable, "-m", "course_lib.doctor", *rest])
    elif command in ("lab", "test"):
        set_up(command)
        # Without the chat model the course runs on its own small one and its tests are skipped: not fatal.
        shown([COURSE, "fetch"])
        if command == "lab":
            become(lab_command(rest))
        os.chdir(ROOT)
        become([PYTHON, "-m", "pytest", *PYTEST, *rest])
    else:
        set_up("lab")
        become([COURSE, command, *rest])


def lab_command(options):
    """JupyterLab's command line: `--host` is its `--ip`, everything else passes unchanged."""
    options = ["--ip" + option[len("--host") :] if option.split("=")[0] == "--host" else option for option in options]
    if not any(option.split("=")[0] in ("--ip", "--ServerApp.ip") for option in options):
        options = ["--ip=127.0.0.1", *options]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        options = ["--allow-root", *options]
    return [
        PYTHON,
        "-m",
        "jupyterlab",
        f"--ServerApp.root_dir={ROOT}",
        "--LabApp.default_url=/lab/tree/notebooks",
        *options,
    ]


def become(command):
    """Replace this process by `command`; its exit status becomes ours."""
    command = [str(part) for part in command]
    os.environ.update(JUPYTER_ENVIRONMENT)
    sys.stdout.flush()
    if not WINDOWS:
        os.execv(command[0], command)
    # Windows' exec returns to the shell at once, so wait instead. Ctrl-C reaches the child too, which decides.
    child = subprocess.Popen(command)
    while True:
        try:
            sys.exit(child.wait())
        except KeyboardInterrupt:
            continue


# --- set-up -----------------------------------------------------------------------------------------------------


def set_up(extra):
    """Make .venv hold the course with `extra` ("lab" or "test", which includes lab). Returns at once if it does."""
    stamp = read_stamp()
    if stamp.get("extra") == "test":
        extra = "test"
    complete = PYTHON.exists() and not UNFINISHED.exists()
    if complete and stamp == {"extra": extra, "inputs": fingerprint()}:
        return
    refuse_macs_without_torch()
    if not STAMP.exists() or UNFINISHED.exists():
        remove_damaged_packages()
    make_venv()
    UNFINISHED.touch()
    if install(extra):
        turn_off_news()
        STAMP.write_text(json.dumps({"extra": extra, "inputs": fingerprint()}))
        UNFINISHED.unlink()
        return
    remove_damaged_packages()
    if read_stamp().get("extra") == extra:
        say("The packages could not be brought up to date (see above); the course starts with those installed earlier.")
        return
    sys.exit(
        "Set-up is not complete because packages could not be installed (see above): check the network connection and "
        "the free disk space, then run the same command again; it continues where it stopped."
    )


def refuse_macs_without_torch():
    """Stop with a sentence on a Mac that torch has no build for, before an installer fails in its own words."""
    if platform.system() != "Darwin":
        return
    if platform.machine() != "arm64" or int(platform.mac_ver()[0].split(".")[0]) < 14:
        sys.exit(
            "torch is published for macOS 14 and newer on Apple processors only: use such a Mac, with a Python built "
            "for its processor, or a machine with Linux or Windows."
        )


def read_stamp():
    try:
        return json.loads(STAMP.read_text())
    except (OSError, ValueError):
        return {}


def fingerprint():
    """Hash of everything that decides what .venv must hold. The folder counts: an editable install names it."""
    parts = [(ROOT / name).read_bytes() for name in ("pyproject.toml", "constraints.txt")]
    parts += [(VENV / "pyvenv.cfg").read_bytes() if (VENV / "pyvenv.cfg").exists() else b"", str(ROOT).encode()]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def make_venv():
    """Make .venv unless there is one with a working Python and pip."""
    check = "import pip, importlib.metadata as m; m.version('pip')"
    if PYTHON.exists() and succeeds([PYTHON, "-c", check]):
        return
    say(f"Making .venv with Python {platform.python_version()}.")
    if succeeds([sys.executable, "-m", "venv", "--clear", VENV]):
        return
    # Debian ships Python without ensurepip; uv brings its own.
    uv = shutil.which("uv")
    if uv and succeeds([uv, "venv", "--clear", "--seed", "--python", sys.executable, VENV]):
        return
    sys.exit(
        "Python's venv module cannot make .venv here: free some disk space, or, on Debian and Ubuntu, install the "
        "module with `sudo apt install python3-venv`; then run the same command again."
    )


def remove_damaged_packages():
    """Delete the records of packages whose files are missing or cut short, so that the installer restores them.

    A killed installer leaves such packages behind and takes them for complete. The stamp goes with them.
    """
    for site in [*VENV.glob("lib/python*/site-packages"), *VENV.glob("Lib/site-packages")]:
        for record_folder in site.glob("*.dist-info"):
            if not is_complete(site, record_folder / "RECORD"):
                shutil.rmtree(record_folder)
                STAMP.unlink(missing_ok=True)


def is_complete(site, record):
    """Whether all files of a package are there in full, by the RECORD that names them and their sizes.

    The RECORD inside a wheel is unpacked with the rest; only the final one names the INSTALLER file as well.
    """
    try:
        with record.open(newline="", encoding="utf-8") as lines:
            sizes = {path: int(size) for path, _, size in csv.reader(lines) if size}
        finished = f"{record.parent.name}/INSTALLER" in sizes
        return finished and all((site / path).stat().st_size == size for path, size in sizes.items())
    except (OSError, ValueError):
        return False


def turn_off_news():
    """Default JupyterLab's news and update checks to off: the course makes no request off this machine."""
    settings = VENV / "share" / "jupyter" / "lab" / "settings"
    settings.mkdir(parents=True, exist_ok=True)
    notification = {"fetchNews": "false", "checkForUpdates": False}
    (settings / "overrides.json").write_text(json.dumps({"@jupyterlab/apputils-extension:notification": notification}))


# --- installers -------------------------------------------------------------------------------------------------


def install(extra):
    """Install the course with `extra` into .venv. True on success."""
    say(f"Installing the course's packages ({extra}); the first time takes some minutes.")
    return all(shown(command) for command in install_commands(extra))


def install_commands(extra):
    """The installer runs that are needed: first torch, in the build that fits this machine, then everything else."""
    gpu = has_nvidia_gpu()
    fits = default_torch_fits(platform.system(), gpu)
    uv = find_uv(needed=not fits)
    constraints = ["-c", ROOT / "constraints.txt"]
    pip_install = [PYTHON, "-m", "pip", "install", *constraints]
    uv_install = [uv, "pip", "install", "--python", PYTHON, *constraints]
    commands = []

    # uv asks PyTorch's own package index for the CPU build or for the CUDA version of the driver. Trial runs download
    # only metadata; this one fails soon where that index cannot be reached.
    torch_by_uv = [*uv_install, "--torch-backend=auto", "torch"]
    torch_at_hand = [*pip_install, "--no-index", "--no-deps", "torch"]  # installed, or in a folder of PIP_FIND_LINKS
    if uv and succeeds([*torch_by_uv, "--dry-run"], UV_HTTP_TIMEOUT="10", UV_HTTP_RETRIES="0"):
        commands.append(torch_by_uv)
    elif not fits and succeeds([*torch_at_hand, "--dry-run"]):
        commands.append(torch_at_hand)
    elif not fits:
        say(warning_about_torch(gpu))

    course = ["-e", f"{ROOT}[{extra}]"]
    # uv does not read pip's configuration, so it may lack an index that pip has.
    if uv and succeeds([*uv_install, *course, "--dry-run"], UV_HTTP_TIMEOUT="10", UV_HTTP_RETRIES="0"):
        commands.append([*uv_install, *course])
    else:
        commands.append([*pip_install, *course])
    return commands


def default_torch_fits(system, gpu):
    """Whether torch from the default index suits this machine: there it is a CUDA build for Linux, elsewhere a CPU one.

    `gpu`: the machine has an NVIDIA GPU.
    """
    return system == "Darwin" or gpu == (system == "Linux")


def has_nvidia_gpu():
    """Whether the NVIDIA driver lists a GPU; a driver without a GPU, as in some containers, does not count."""
    if any(NVIDIA_GPUS.glob("*")):
        return True
    tool = shutil.which("nvidia-smi")
    return bool(tool) and succeeds([tool, "-L"])


def find_uv(needed):
    """The path of uv, or None. Where `needed`, pip first installs it into .venv if there is none."""
    own = BIN / ("uv.exe" if WINDOWS else "uv")
    found = shutil.which("uv") or (str(own) if own.exists() else None)
    if needed and not found:
        say("Getting uv, which chooses torch's build for this machine.")
        succeeds([PYTHON, "-m", "pip", "install", "--retries", "1", "uv"])
        found = str(own) if own.exists() else None
    return found


def warning_about_torch(gpu):
    """What the default torch costs a machine that it does not fit, and how to install the other build first."""
    python, kind = PYTHON.relative_to(ROOT), "CUDA" if gpu else "CPU"
    problem = (
        "torch comes as a CPU build now, so the GPU will stay idle"
        if gpu
        else "torch's CPU build is out of reach, so the CUDA build (3 GB), of no use here, is downloaded now"
    )
    return (
        f"{problem}; for the {kind} build stop with Ctrl-C, run `{python} -m pip install -c constraints.txt torch "
        f"--index-url URL` with the URL that PyTorch's 'Start Locally' page shows for pip and {kind}, then start again."
    )


# --- processes --------------------------------------------------------------------------------------------------


def succeeds(command, **environment):
    """Run `command` unseen. True if it exits with 0 within ten minutes."""
    command = [str(part) for part in command]
    try:
        done = subprocess.run(
            command, env={**os.environ, **environment}, stdin=subprocess.DEVNULL, capture_output=True, timeout=600
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def shown(command):
    """Run `command` with its output and progress bars on the terminal. True if it exits with 0."""
    return subprocess.call([str(part) for part in command]) == 0


def say(sentence):
    print(sentence, flush=True)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit("Stopped; run the same command again to continue.")

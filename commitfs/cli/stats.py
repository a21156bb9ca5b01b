"""``commitfs stats``"""

import click


@click.command()
@click.argument("store")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def stats(store: str, as_json: bool) -> None:
    """Count commits, files and bytes."""
    from commitfs.cli.output import put, put_json, size_text
    from commitfs.cli.stores import reading
    from commitfs.vfs.usage import usage_of

    with reading(store) as opened:
        figures = usage_of(opened)._asdict()
    if as_json:
        put_json(figures)
        return
    for name, value in figures.items():
        shown = size_text(value) if name in _BYTES else str(value)
        put(f"{name.replace('_', ' '):16} {shown}")


_BYTES = frozenset(("published_end", "file_bytes", "live_bytes", "live_data", "live_metadata"))

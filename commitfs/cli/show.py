"""``commitfs show``"""

import click


@click.command()
@click.argument("store")
@click.argument("commit", metavar="ID")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, as log prints it.")
def show(store: str, commit: str, as_json: bool) -> None:
    """Tell everything about one commit."""
    from commitfs.cli.describe import change_text, facts_of, fields, iso, program_text
    from commitfs.cli.output import put, put_json, size_text
    from commitfs.cli.stores import reading
    from commitfs.vfs.names import id_name, resolve

    with reading(store) as opened:
        record = resolve(opened, commit)
        told = fields(opened, record)
        if as_json:
            put_json(told)
            return
        made, damage = facts_of(opened, record)
        put(f"commit   {id_name(int(record.id))}")
        put(f"time     {iso(record.time_ns)}")
        put(f"parent   {id_name(int(record.parent_id)) if record.parent_id else 'none'}")
        put(f"branch   {told['branch']}")
        put(f"place    {size_text(int(str(told['bytes'])))} at offset {record.offset}")
        if made is None:
            put(f"facts    {damage or 'none'}")
            return
        put(f"made by  {program_text(made)}")
        put("")
        for change in made.changes:
            put(f"    {change_text(change)}")
        if made.truncated:
            put("    … and more, not recorded here")

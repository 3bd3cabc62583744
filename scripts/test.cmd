@echo off
rem All checks of the project (scripts\checks.py), in .venv; --fast: those that take seconds; other arguments go to
rem pytest, which then runs alone.
setlocal
for %%I in ("%~dp0..") do set "ROOT=%%~fI"
call "%ROOT%\scripts\venv.cmd" --dev || exit /b 1
"%ROOT%\.venv\Scripts\python.exe" "%ROOT%\scripts\checks.py" %*
exit /b %ERRORLEVEL%
